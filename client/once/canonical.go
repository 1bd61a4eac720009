package once

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// appendMessage encodes a message canonically, for fingerprints: fields in order of number, each with its
// number, every text with its length, so that different messages have different encodings. Protobuf's own
// encoding is not stable across versions, and a retry may reach another version.
func appendMessage(b []byte, m protoreflect.Message) []byte {
	fields := m.Descriptor().Fields()
	order := make([]protoreflect.FieldDescriptor, fields.Len())
	for i := range order {
		order[i] = fields.Get(i)
	}
	slices.SortFunc(order, func(a, b protoreflect.FieldDescriptor) int { return int(a.Number()) - int(b.Number()) })
	for _, f := range order {
		if !m.Has(f) {
			continue
		}
		b = binary.AppendUvarint(b, uint64(f.Number()))
		v := m.Get(f)
		switch {
		case f.IsMap():
			b = appendMap(b, f.MapValue(), v.Map())
		case f.IsList():
			b = binary.AppendUvarint(b, uint64(v.List().Len()))
			for i := range v.List().Len() {
				b = appendValue(b, f, v.List().Get(i))
			}
		default:
			b = appendValue(b, f, v)
		}
	}
	return appendText(append(b, 0), []byte(m.GetUnknown())) // no field has number 0
}

func appendMap(b []byte, f protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool { keys = append(keys, k); return true })
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, k := range keys {
		b = appendValue(appendText(b, k.String()), f, m.Get(k))
	}
	return b
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.StringKind:
		return appendText(b, v.String())
	case protoreflect.BytesKind:
		return appendText(b, v.Bytes())
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(b, v.Message())
	case protoreflect.BoolKind:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case protoreflect.EnumKind:
		return binary.AppendVarint(b, int64(v.Enum()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return binary.BigEndian.AppendUint64(b, math.Float64bits(v.Float()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return binary.AppendUvarint(b, v.Uint())
	}
	return binary.AppendVarint(b, v.Int())
}
