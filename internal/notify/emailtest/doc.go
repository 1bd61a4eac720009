// Package emailtest is an SMTP server in its own process, for tests that send e-mails. In each phase of the protocol it
// behaves as the test prescribes. It can be killed at any moment: accepted messages are in a file.
//
// The process is the test binary, started again: importing this package is enough.
package emailtest
