// Script errors are shown on the page, and kept in <html data-errors> where a test can read them.
'use strict';

function reportError(text) {
  const root = document.documentElement;
  root.dataset.errors = (root.dataset.errors ? root.dataset.errors + '\n' : '') + text;
  const box = document.getElementById('errors');
  box.hidden = false;
  box.textContent = 'This page could not draw everything: ' + root.dataset.errors;
}

window.addEventListener('error', (event) => reportError(event.message || String(event)));
window.addEventListener('unhandledrejection', (event) => reportError(String(event.reason)));
document.addEventListener('securitypolicyviolation',
    (event) => reportError('blocked ' + event.effectiveDirective + ' ' + event.blockedURI));
