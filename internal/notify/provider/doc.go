// Package provider reads the providers of each channel from a file, and builds one sender per channel.
//
// Providers are asked in the order of the file. The next one is asked only if the previous one did not send the
// message, or if the outcome is unknown and both the file and the message allow sending twice. A circuit breaker skips
// failing providers. Concurrency and rate are limited per provider.
package provider
