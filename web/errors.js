// Shows script errors on the page, and stores them in <html data-errors> for the tests.
'use strict';

function reportError(text) {
  const root = document.documentElement;
  root.dataset.errors = (root.dataset.errors ? root.dataset.errors + '\n' : '') + text;
  const box = document.getElementById('errors');
  box.hidden = false;
  box.textContent = 'Some parts of this page could not be drawn: ' + root.dataset.errors;
}

window.addEventListener('error', (event) => reportError(event.message || String(event)));
window.addEventListener('unhandledrejection', (event) => reportError(String(event.reason)));
document.addEventListener('securitypolicyviolation',
    (event) => reportError('blocked ' + event.effectiveDirective + ' ' + event.blockedURI));
