// Package flow combines the domains: it registers their participants in the global lock order, and has the business
// operations that span several domains.
package flow
