// Package webhook posts events to endpoints, signed as specified by https://www.standardwebhooks.com, and stores the
// endpoints. It owns the table notify_endpoints.
//
// Promises: webhook-id is the same in every attempt, so receivers can deduplicate. Secrets are not stored, but derived
// from the master key, the endpoint and the secret's version; during a rotation both versions sign. Connections are
// made only to public addresses, checked after DNS resolution, unless the configuration allows others. An endpoint that
// answers 410, or has failed continuously for five days, is disabled.
package webhook
