package rpc

import (
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// resourceOf names what a change made or found, by its answer: the first message in it that has a name, with
// that name. {"resource": "transfer", "id": "16385", "biz_no": "order-1"}, for example; of an Execute the
// first resource that an operation made. Nil when nothing in the answer has a name.
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

// named gives a message's own names, or those of the first resource in it.
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

// maxNameBytes bounds what is kept of a name: all of ours are shorter.
const maxNameBytes = 512

// isName tells by the name of a field that its value names a resource: its id, its code and asset, or a number of
// the business's own such as biz_no or order_no.
func isName(field string) bool {
	return field == "id" || field == "code" || field == "asset" || strings.HasSuffix(field, "_no")
}

// snake writes StockItem as stock_item.
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
