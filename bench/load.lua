-- Makes wrk send one load:
-- wrk -s load.lua URL -- <list|create|delete|mix> <tokens file> <first id> <threads> <pause>
-- Before each request, a connection pauses for a random time: <pause> ms on average. 0 is full load.
-- The users of tokens 1 to 1000 only list their 20 plants. The users of tokens 1001 to 2000 only create and
-- delete plants.

local threads = 0

function setup (thread)
  thread:set('thread', threads)
  threads = threads + 1
end

local lists, creates, deletes = {}, {}, {}
local created, deleted
local step

local function list ()
  return lists[math.random(1000)]
end

local function create ()
  created = created + step
  local body = '{"id":' .. created .. ',"name":"Monstera deliciosa","tag":"indoor"}'
  return creates[math.random(1000)] .. #body .. '\r\n\r\n' .. body
end

local function delete ()
  deleted = deleted + step
  return 'DELETE /plants/' .. deleted .. deletes[deleted % 1000 + 1]
end

local function mix ()
  local dice = math.random(100)
  return dice <= 80 and list() or dice <= 95 and create() or delete()
end

function init (args)
  local load, first = args[1], tonumber(args[3])
  step = tonumber(args[4])
  deleted = first + thread - step
  created = first + 100000000 + thread - step
  math.randomseed(first + thread)
  local user = 0
  for token in io.lines(args[2]) do
    local head = ' HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ' .. token .. '\r\n'
    if user < 1000 then
      lists[user + 1] = 'GET /plants' .. head .. '\r\n'
    else
      creates[user - 999] = 'POST /plants' .. head .. 'Content-Type: application/json\r\nContent-Length: '
      deletes[user - 999] = head .. '\r\n'
    end
    user = user + 1
    if user == 2000 then break end
  end
  request = ({ list = list, create = create, delete = delete, mix = mix })[load]
  local pause = tonumber(args[5])
  -- wrk looks for this function after init. Exponential pauses make the requests independent of each other.
  if pause > 0 then
    delay = function () return math.floor(0.5 - pause * math.log(1 - math.random())) end
  end
end

function done (summary, latency)
  local errors = summary.errors
  io.write(string.format('\n{"requests":%d,"duration":%d,"failed":%d,"p50":%d,"p99":%d}\n',
    summary.requests, summary.duration,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
