package rpc

import (
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	adminv1 "github.com/ledgerd/ledgerd/gen/ledgerd/admin/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// permission is what a call needs: the name of its operation, for scopes, and the least role.
type permission struct {
	operation string
	role      access.Role
}

// The permissions of all calls, by procedure, and by the full name of the request: Execute and batches contain
// requests. Some requests need access.Admin besides: see needsAdmin.
var byProcedure, byRequest = permissions()

func permissions() (byProcedure map[string]permission, byRequest map[protoreflect.FullName]permission) {
	byProcedure, byRequest = map[string]permission{}, map[protoreflect.FullName]permission{}
	for _, m := range calls() {
		service, name := string(m.Parent().FullName()), string(m.Name())
		p := permission{operationName(service, name), leastRole(m)}
		byProcedure["/"+service+"/"+name], byRequest[m.Input().FullName()] = p, p
	}
	return byProcedure, byRequest
}

// calls returns every call of the API.
func calls() (all []protoreflect.MethodDescriptor) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := 0; i < f.Services().Len() && strings.HasPrefix(string(f.Package()), "ledgerd."); i++ {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, methods.Get(j))
			}
		}
		return true
	})
	return all
}

// leastRole is that of the option least_role. Without it a call needs access.Admin.
func leastRole(m protoreflect.MethodDescriptor) access.Role {
	if r := proto.GetExtension(m.Options(), adminv1.E_LeastRole).(adminv1.Role); r != 0 {
		return access.Role(r)
	}
	return access.Admin
}

// operationName is the name of the operation of a call: ledgerd.order.v1.OrderService/CreateOrder is
// order.create_order.
func operationName(service, call string) string {
	var b strings.Builder
	b.WriteString(strings.Split(service, ".")[1] + ".")
	for i, r := range call {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// allows reports whether a role is enough. Operators may also make those calls of AdminService that need less.
func (p permission) allows(r access.Role) bool {
	return r.Includes(p.role) || r == access.Operator && strings.HasPrefix(p.operation, "admin.")
}

// permissionOf returns what a procedure needs. Reflection describes the API to every caller. An unknown procedure needs
// access.Admin.
func permissionOf(procedure string) permission {
	if strings.HasPrefix(procedure, "/grpc.reflection.") {
		return permission{operation: "reflection", role: access.Read}
	}
	if p, ok := byProcedure[procedure]; ok {
		return p
	}
	return permission{role: access.Admin}
}
