// Package template is about what messages are written with: texts with typed variables, in several locales, of which
// every change makes a new version. It owns the tables notify_templates and notify_template_versions.
//
// What it promises: a message is written whole, of values that are what the template says they are, or not at all, and
// then every problem is named. What a value says is text wherever it stands: it begins no HTML, no header field and no
// other address. A text that was kept does no more than was known when it was: it cannot loop, call, or grow without
// bound. What a message was written with can be read for ever.
package template
