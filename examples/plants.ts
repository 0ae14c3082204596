// Creates a plant, lists your plants and deletes the plant: TOKEN=plant_… npx node examples/plants.ts
const { BASE = 'http://127.0.0.1:3000', TOKEN } = process.env

async function call (method: string, path: string, plant?: object) {
  const response = await fetch(BASE + path, {
    method,
    headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
    body: JSON.stringify(plant)
  })
  if (response.ok) return response.status === 204 ? undefined : response.json()
  const { error, message } = await response.json() as { error: number, message: string }
  throw new Error(`${message} (${error})`)
}

console.log('created', await call('POST', '/plants', { id: 42, name: 'Monstera deliciosa', tag: 'tropical' }))
console.log('yours', await call('GET', '/plants?limit=20'))
await call('DELETE', '/plants/42')
console.log('left', await call('GET', '/plants'))
