// Package provider reads which providers there are for each channel, and makes one sender of those of a channel.
//
// They are asked in the order of the file. The next one is asked only when the one before surely did not send,
// or, where the file says so, when nobody knows and the message may be sent twice. One that fails again and again
// is passed over for a while. How often each is asked, at once and in a second, is bounded as it asks.
package provider
