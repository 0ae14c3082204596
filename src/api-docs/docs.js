/* global document, location, MutationObserver, navigator, Scalar */
Scalar.createApiReference('#app', {
  url: 'openapi.json',
  servers: [{ url: new URL('.', location.href).href.slice(0, -1) }],
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
})

// Add copy buttons to the code blocks of the text. Scalar adds them only to the samples of operations.
new MutationObserver(() => {
  for (const pre of document.querySelectorAll('.markdown pre:not(:has(button))')) {
    const text = pre.textContent
    const button = document.createElement('button')
    button.textContent = 'Copy'
    button.addEventListener('click', () => navigator.clipboard.writeText(text))
    pre.append(button)
  }
}).observe(document.body, { childList: true, subtree: true })
