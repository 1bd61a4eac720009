// Package template stores and renders templates: texts with typed variables, in several locales. Every change creates a
// new immutable version. The package owns the tables notify_templates and notify_template_versions.
//
// Promises: values are validated against the declared variables. A message is rendered whole, or all problems are
// returned. Values are escaped for their place: they cannot inject HTML, header fields or addresses. A template was
// checked before it was stored: it cannot loop, call methods, or grow without bound. A version can be read for ever.
package template
