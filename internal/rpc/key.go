package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// KeyHeader is the header that carries a request key; ReplayedHeader marks the answer to a repeat.
const (
	KeyHeader      = "Idempotency-Key"
	ReplayedHeader = "Idempotency-Replayed"
)

var keyUnsupported = fault.Define(fault.Reason{Name: "IDEMPOTENCY_KEY_UNSUPPORTED", Class: fault.BadRequest,
	Code: fault.InvalidArgument, Step: fault.Fix,
	Doc: "The call records nothing, so it accepts no Idempotency-Key: send it without one."})

// recordsNothing is for calls whose answer is another one each time, and is not recorded. It refuses what they
// cannot keep: a key, whose sender counts on the same answer again, and what is to commit with a change.
func (c *call) recordsNothing() error {
	c.keyless = true
	switch {
	case c.key != "":
		return keyUnsupported.New("%s records nothing, so it accepts no %s: send it without one", c.procedure,
			KeyHeader)
	case len(c.conditions) > 0:
		return fault.FieldInvalid.New("%s commits nothing that a submit token or a claim could guard: send it without",
			c.procedure)
	}
	return nil
}

// letThrough is the call as it goes on when its key was found recorded: key, token and claim were asked for then, and
// are not again.
func (c *call) letThrough(ctx context.Context) (context.Context, *call) {
	later := *c
	later.key, later.conditions, later.token, later.claim, later.identity.Policies = "", nil, nil, nil, nil
	return context.WithValue(ctx, callKey{}, &later), &later
}

// ParseKey reads an Idempotency-Key: 1 to 255 printable ASCII characters, bare, or quoted as the
// structured field string of RFC 9651 (with \" and \\ inside). The quotes do not belong to the key.
func ParseKey(s string) (string, error) {
	key, life, err := parseKeyHeader(s)
	if err == nil && life != 0 {
		return "", commit.KeyInvalid.New("idempotency_key takes no life parameter: only the header Idempotency-Key does")
	}
	return key, err
}

// parseKeyHeader reads the header: a key as ParseKey has it, and behind a quoted one, as a parameter of the
// structured field, the seconds that it is to live: "abc";life=172800.
func parseKeyHeader(s string) (key string, life time.Duration, err error) {
	key = s
	if strings.HasPrefix(s, `"`) {
		f, err := parseField(s)
		if err != nil {
			return "", 0, commit.KeyInvalid.New("the Idempotency-Key begins with a quote and %v", err)
		}
		key, _ = f.text()
		for name, value := range f.parameters() {
			seconds, whole := value.(int64)
			if life, _ = secondsOf(value); name != "life" || !whole || life < access.LeastKeyLife ||
				life > access.GreatestKeyLife || seconds == 0 {
				return "", 0, commit.KeyInvalid.New("a quoted Idempotency-Key may only be followed by ;life=N, where N is %.0f to %.0f seconds",
					access.LeastKeyLife.Seconds(), access.GreatestKeyLife.Seconds())
			}
		}
	}
	if len(key) < 1 || len(key) > 255 {
		return "", 0, commit.KeyInvalid.New("the Idempotency-Key must be 1 to 255 printable ASCII characters")
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", 0, commit.KeyInvalid.New("the Idempotency-Key must be 1 to 255 printable ASCII characters")
		}
	}
	return key, life, nil
}

// The versions of fingerprints change when the canonical form does.
const (
	fingerprintVersion = 1
	pepperedVersion    = 2
)

// fingerprint is SHA-256, cut to 128 bits, over the canonical form of a request: equal for requests
// that ask for the same, however they were encoded.
func fingerprint(m proto.Message) []byte {
	buf := canonicalBuffers.Get().(*[]byte)
	defer canonicalBuffers.Put(buf)
	b := appendCanonical((*buf)[:0], m.ProtoReflect())
	*buf = b
	sum := sha256.Sum256(b)
	f := make([]byte, commit.FingerprintSize)
	f[0] = fingerprintVersion
	copy(f[1:], sum[:])
	return f
}

// fingerprint is that of a request. Where it may name people, or say what they are told, it is made with a key: from a
// plain hash whoever reads recorded keys would find a phone number, or a short text, by trying all there are.
func (s *Mutations) fingerprint(m proto.Message) []byte {
	if s.Pepper == nil || !personal(m) {
		return fingerprint(m)
	}
	mac := hmac.New(sha256.New, s.Pepper)
	mac.Write(appendCanonical(nil, m.ProtoReflect()))
	return append([]byte{pepperedVersion}, mac.Sum(nil)[:commit.FingerprintSize-1]...)
}

// personal requests are those about messages, and what has some of them within it.
func personal(m proto.Message) bool {
	const messages = "ledgerd.notify.v1"
	if e, ok := m.(*batchv1.ExecuteRequest); ok {
		return slices.ContainsFunc(e.GetOperations(),
			func(o *batchv1.Operation) bool { return o.GetRequest().MessageName().Parent() == messages })
	}
	return m.ProtoReflect().Descriptor().FullName().Parent() == messages
}

var canonicalBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }}

// appendCanonical writes a message field by field, by number, each with its number and its length, so
// that no two different requests give the same bytes. Decimals are normalised: "12.30" is "12.3".
// Our own form, because protobuf's is not promised to stay the same from version to version.
func appendCanonical(b []byte, m protoreflect.Message) []byte {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := packed.UnmarshalNew(); err == nil { // checked before; else its bytes are all there is
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

type canonicalField struct {
	protoreflect.FieldDescriptor
	decimal bool
}

var canonicalFields sync.Map // protoreflect.MessageDescriptor to []canonicalField

// decimalFields hold amounts in every message of ours.
var decimalFields = []protoreflect.Name{"amount", "min_balance", "max_balance", "balance_at_least"}

func fieldsOf(d protoreflect.MessageDescriptor) []canonicalField {
	if f, ok := canonicalFields.Load(d); ok {
		return f.([]canonicalField)
	}
	var fields []canonicalField
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
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

// canonicalDecimal writes a decimal in the one way; what is none stays as it is.
func canonicalDecimal(s string) string {
	if d, err := amount.ParseDecimal(s); err == nil {
		return d.String()
	}
	return s
}
