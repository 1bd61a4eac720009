package rpc

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	approvalv1 "github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1"
	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// Versions of fingerprints. Raise them when the canonical form changes.
const (
	fingerprintVersion = 1
	pepperedVersion    = 2
)

// fingerprint is SHA-256, cut to 128 bits, over the canonical form of a request. Requests with the same content have
// the same fingerprint, whatever their encoding. It is keyed (HMAC) for requests with personal data: a reader of
// recorded keys could find a phone number or a short text behind a plain hash by trying all of them.
func (s *Mutations) fingerprint(m proto.Message) []byte {
	text := appendCanonical(make([]byte, 0, 256), m.ProtoReflect())
	if s.Pepper != nil && personal(m) {
		h := hmac.New(sha256.New, s.Pepper)
		h.Write(text)
		return h.Sum([]byte{pepperedVersion})[:commit.FingerprintSize]
	}
	hash := sha256.Sum256(text)
	return append([]byte{fingerprintVersion}, hash[:commit.FingerprintSize-1]...)
}

// personal reports whether a request may hold personal data: all do except those of the ledger, stock, machines,
// idempotency, locks and the inbox. An Execute or a RequestApproval does if a request inside it does.
func personal(m proto.Message) bool {
	mayBePersonal := func(name protoreflect.FullName) bool {
		switch name.Parent() {
		case "ledgerd.ledger.v1", "ledgerd.stock.v1", "ledgerd.machine.v1", "ledgerd.idempotency.v1",
			"ledgerd.lock.v1", "ledgerd.inbox.v1":
			return false
		}
		return true
	}
	switch r := m.(type) {
	case *batchv1.ExecuteRequest:
		return slices.ContainsFunc(r.GetOperations(),
			func(o *batchv1.Operation) bool { return mayBePersonal(o.GetRequest().MessageName()) })
	case *approvalv1.RequestApprovalRequest:
		inner, err := r.GetRequest().UnmarshalNew()
		return err != nil || personal(inner)
	}
	return mayBePersonal(m.ProtoReflect().Descriptor().FullName())
}

// appendCanonical writes a message field by field, in the order of their numbers, each with its number and a value of
// known length, so that different requests never give the same bytes. Decimals are normalised: "12.30" becomes "12.3".
// The form is our own, because protobuf does not promise that its deterministic form is stable across versions.
func appendCanonical(b []byte, m protoreflect.Message) []byte {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := packed.UnmarshalNew(); err == nil { // valid after check; otherwise hash its bytes
			return appendCanonical(appendText(b, string(inner.ProtoReflect().Descriptor().FullName())),
				inner.ProtoReflect())
		}
	}
	for _, f := range fieldsOf(m.Descriptor()) {
		if !m.Has(f.FieldDescriptor) {
			continue
		}
		b = binary.AppendUvarint(b, uint64(f.Number()))
		v := m.Get(f.FieldDescriptor)
		switch {
		case f.IsMap():
			b = appendMap(b, f.FieldDescriptor, v.Map())
		case f.IsList():
			l := v.List()
			b = binary.AppendUvarint(b, uint64(l.Len()))
			for i := range l.Len() {
				b = appendValue(b, f, l.Get(i))
			}
		default:
			b = appendValue(b, f, v)
		}
	}
	return append(b, 0) // no field has the number 0
}

// notContent has fields that say how a request is carried out. A retry may change them.
var notContent = map[protoreflect.FullName]bool{
	"ledgerd.stock.v1.ReserveRequest.strategy": true, "ledgerd.stock.v1.ReserveRequest.max_attempts": true,
	"ledgerd.stock.v1.DeductRequest.strategy": true, "ledgerd.stock.v1.DeductRequest.max_attempts": true,
}

type canonicalField struct {
	protoreflect.FieldDescriptor
	decimal bool
}

var canonicalFields sync.Map // protoreflect.MessageDescriptor to []canonicalField

// decimalFields are the names of fields that hold amounts, in all our messages.
var decimalFields = []protoreflect.Name{"amount", "min_balance", "max_balance", "balance_at_least"}

func fieldsOf(d protoreflect.MessageDescriptor) []canonicalField {
	if f, ok := canonicalFields.Load(d); ok {
		return f.([]canonicalField)
	}
	var fields []canonicalField
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if notContent[f.FullName()] {
			continue
		}
		fields = append(fields, canonicalField{f, slices.Contains(decimalFields, f.Name())})
	}
	slices.SortFunc(fields, func(a, b canonicalField) int { return int(a.Number()) - int(b.Number()) })
	canonicalFields.Store(d, fields)
	return fields
}

func appendMap(b []byte, f protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	keys := make([]string, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool { keys = append(keys, k.String()); return true })
	slices.Sort(keys)
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, k := range keys {
		b = appendText(b, k)
		b = appendValue(b, canonicalField{FieldDescriptor: f.MapValue()}, m.Get(protoreflect.ValueOfString(k).MapKey()))
	}
	return b
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendValue(b []byte, f canonicalField, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.StringKind:
		s := v.String()
		if f.decimal {
			s = canonicalDecimal(s)
		}
		return appendText(b, s)
	case protoreflect.BytesKind:
		return appendText(b, string(v.Bytes()))
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendCanonical(b, v.Message())
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

// canonicalDecimal normalises a decimal. Other text is returned unchanged.
func canonicalDecimal(s string) string {
	if d, err := amount.ParseDecimal(s); err == nil {
		return d.String()
	}
	return s
}
