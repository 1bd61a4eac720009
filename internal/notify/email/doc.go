// Package email sends e-mails by SMTP. It keeps some connections open, and knows of every attempt that did not
// go well whether the message may have been sent: only from the moment on when the end of the message, a dot on
// a line of its own, began to go out, and until the server's answer to it came in.
package email
