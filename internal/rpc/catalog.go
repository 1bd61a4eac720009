package rpc

import (
	"maps"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/access"
)

// CatalogEntry describes a call for authors of scopes and policies.
type CatalogEntry struct {
	Operation string // name in scopes, policies and records
	Call      string // service and method
	Role      access.Role
	Execute   bool     // an Execute may contain it
	Policy    bool     // policies may name it
	Approval  bool     // policies may require its approval
	Above     bool     // policies may require it above an amount
	Fields    []string // of its request, that scopes name: all but page tokens
}

// Catalog describes every call of the API, in the order of their operations.
func Catalog() []CatalogEntry {
	var all []CatalogEntry
	for _, m := range calls() {
		service := string(m.Parent().Name())
		request := m.Input().FullName()
		p := byRequest[request]
		fields := slices.Sorted(maps.Keys(fieldsForScopes[request]))
		all = append(all, CatalogEntry{Operation: p.operation, Call: service + "." + string(m.Name()), Role: p.role,
			Execute: slices.Contains(executable(), p.operation), Policy: slices.Contains(Operations(), p.operation),
			Approval: approvable(p.operation), Above: slices.Contains(withAmount, p.operation),
			Fields: slices.DeleteFunc(fields, func(f string) bool { return f == "page_token" })})
	}
	slices.SortFunc(all, func(a, b CatalogEntry) int { return strings.Compare(a.Operation, b.Operation) })
	return all
}
