package rpc

import (
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// resourceOf returns the names of the resource that a mutation made or found: those of the first message in the
// response that has any, such as {"resource": "transfer", "id": "16385", "biz_no": "order-1"}. For an Execute this is
// the resource of the first operation that has one. Nil if no message in the response has a name.
func resourceOf(m protoreflect.Message) map[string]string {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			return nil
		}
		return resourceOf(inner.ProtoReflect())
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil || f.IsMap() || !m.Has(f) {
			continue
		}
		if !f.IsList() {
			if resource := named(m.Get(f).Message()); resource != nil {
				return resource
			}
			continue
		}
		for l, j := m.Get(f).List(), 0; j < l.Len(); j++ {
			if resource := named(l.Get(j).Message()); resource != nil {
				return resource
			}
		}
	}
	return nil
}

// named returns the names of a message, or those of the first resource in it.
func named(m protoreflect.Message) map[string]string {
	var names map[string]string
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.Name())
		if f.IsList() || f.IsMap() || f.Message() != nil || !m.Has(f) || !isName(name) {
			continue
		}
		if names == nil {
			names = map[string]string{"resource": snake(string(m.Descriptor().Name()))}
		}
		if text := m.Get(f).String(); len(text) <= maxNameBytes {
			names[name] = text
		}
	}
	if names == nil {
		return resourceOf(m)
	}
	return names
}

// maxNameBytes bounds a name. Longer ones are left out.
const maxNameBytes = 512

// isName reports whether a field holds a name of a resource: its id, its code or asset, its item, or a business number
// such as biz_no or order_no.
func isName(field string) bool {
	return field == "id" || field == "code" || field == "asset" || field == "item" || strings.HasSuffix(field, "_no")
}

// snake converts StockItem to stock_item.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
