package rpc

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ledgerd/ledgerd/internal/access"
)

// CatalogEntry describes a call for those who write scopes and policies.
type CatalogEntry struct {
	Operation string // name in scopes, policies and records
	Call      string // service and method
	Role      access.Role
	Execute   bool     // an Execute may contain it
	Policy    bool     // policies may name it
	Approval  bool     // they may require its approval
	Above     bool     // they may do so above an amount
	Fields    []string // of its request, that scopes name: all but page tokens
}

// Catalog describes every call of the API, in the order of their operations.
func Catalog() []CatalogEntry {
	var all []CatalogEntry
	byOperation := map[string]protoreflect.FullName{}
	for request, p := range byRequest {
		byOperation[p.operation] = request
	}
	for service, calls := range leastRoles {
		short := service[strings.LastIndexByte(service, '.')+1:]
		for name, role := range calls {
			o := operationName(service, name)
			fields := slices.Sorted(maps.Keys(fieldsForScopes[byOperation[o]]))
			all = append(all, CatalogEntry{Operation: o, Call: short + "." + name, Role: role,
				Execute: slices.Contains(executable(), o), Policy: slices.Contains(Operations(), o),
				Approval: approvable(o), Above: slices.Contains(withAmount, o),
				Fields: slices.DeleteFunc(fields, func(f string) bool { return f == "page_token" })})
		}
	}
	slices.SortFunc(all, func(a, b CatalogEntry) int { return strings.Compare(a.Operation, b.Operation) })
	return all
}
