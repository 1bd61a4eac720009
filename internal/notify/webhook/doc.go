// Package webhook posts events to the systems of others, signed as https://www.standardwebhooks.com has it, and keeps to
// which endpoints. It owns the table notify_endpoints.
//
// What it promises: webhook-id is the same in every attempt, so receivers can tell a repeat. A secret is nowhere
// kept: it is derived from the master key, the endpoint and the version of its secret, and while a secret is replaced
// both sign. No connection is made to an address that is not public, whatever the name resolved to a moment before,
// unless the configuration allows it. An endpoint that answers 410, or that has failed for five days on end, is
// disabled.
package webhook
