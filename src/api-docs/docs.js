/* global document, location, MutationObserver, navigator, Node, Scalar, setTimeout */
const base = new URL('.', location.href).href.slice(0, -1)
const find = (id) => document.getElementById(id)

find('loading').hidden = false
find('scalar').addEventListener('error', () => {
  find('loading').textContent = 'The rest of the reference could not be loaded. Reload the page.'
})
find('scalar').addEventListener('load', () => Scalar.createApiReference('#app', {
  url: 'openapi.json',
  servers: [{ url: base }],
  hiddenClients: [],
  featuredClients: ['shell/curl', 'python/python3', 'js/fetch'],
  defaultOpenAllTags: true,
  documentDownloadType: 'direct',
  hideClientButton: true,
  hideDarkModeToggle: true,
  showDeveloperTools: 'never',
  // Each of these features would send requests to other hosts.
  withDefaultFonts: false,
  telemetry: false,
  agent: { disabled: true },
  mcp: { disabled: true },
  // Keep the user's token in memory only.
  persistAuth: false
}))

// Browsers have `navigator.clipboard` only on https and on localhost. Scalar's own buttons need it, too.
if (navigator.clipboard === undefined) {
  Object.defineProperty(navigator, 'clipboard', { value: { writeText: copyBySelection } })
}

async function copyBySelection (text) {
  const focused = document.activeElement
  const area = document.createElement('textarea')
  area.value = text
  focused.parentElement.append(area)
  area.select()
  const isCopied = document.execCommand('copy')
  area.remove()
  focused.focus()
  if (!isCopied) throw new Error('The browser does not copy.')
}

/** Names the sample by the headings above it: the section, and a heading within the section. */
function nameOf (pre) {
  const above = [...document.querySelectorAll('h1, h2, h3')].filter((heading) =>
    heading.compareDocumentPosition(pre) & Node.DOCUMENT_POSITION_FOLLOWING)
  const section = above.findLast(({ localName }) => localName !== 'h3')
  return [...new Set([section, above.at(-1)])].map((heading) => heading.textContent.trim()).join(', ')
}

function addCopyButton (pre) {
  const text = pre.textContent
  const button = document.createElement('button')
  const name = nameOf(pre)
  const show = (word) => {
    button.textContent = word
    button.ariaLabel = `${word}: ${name}`
  }
  show('Copy')
  button.addEventListener('click', async () => {
    const word = await navigator.clipboard.writeText(text).then(() => 'Copied', () => 'Failed')
    show(word)
    find('status').textContent = `${word}: ${name}`
    setTimeout(show, 2000, 'Copy')
  })
  pre.append(button)
}

/** Improves what Scalar has rendered. Scalar renders a section when the section becomes visible. */
function improve () {
  if (document.querySelector('#app h1') !== null) find('start')?.remove()
  const all = (selector) => document.querySelectorAll(selector)
  all(':is(#start, .markdown) pre:not(:has(button))').forEach(addCopyButton)
  for (const code of all(':is(#start, .markdown) code:not(pre code)')) {
    const text = code.textContent.replace('http://127.0.0.1:3000', base)
    if (text !== code.textContent) code.textContent = text
  }
}
improve()
new MutationObserver(improve).observe(document.body, { childList: true, subtree: true })
