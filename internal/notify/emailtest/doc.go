// Package emailtest is an SMTP server in a process of its own, for tests that send e-mails. It behaves as the
// test tells it, in each phase of a conversation, and can be killed at any moment: what it answered for is in a
// file.
//
// The process is the test's own program, started again: importing this package is enough.
package emailtest
