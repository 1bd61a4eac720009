// Package email sends e-mails by SMTP over a pool of connections. It classifies each failed attempt: the message may
// have been sent only between the first byte of its terminating dot and the server's reply to it.
package email
