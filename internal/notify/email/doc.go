// Package email sends e-mails by SMTP over a pool of connections. It classifies each failed attempt: the outcome is
// unknown only if the attempt ended between the first byte of the terminating dot and the server's reply to it.
package email
