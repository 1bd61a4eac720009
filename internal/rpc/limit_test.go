package rpc

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf16"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1/notifyv1connect"
)

func TestCallsThatNeedLittleHaveSmallLimits(t *testing.T) {
	for procedure, want := range map[string]int{
		ledgerv1connect.LedgerServiceGetBalanceProcedure:    64 << 10,
		ledgerv1connect.LedgerServiceWatchEntriesProcedure:  64 << 10,
		ledgerv1connect.LedgerServiceHoldProcedure:          256 << 10,
		ledgerv1connect.LedgerServiceTransferBatchProcedure: 16 << 20,
		notifyv1connect.NotifyServiceSendProcedure:          16 << 20, // has a Struct
		"/grpc.reflection.v1.ServerReflection/Info":         64 << 10,
		"/callbacks/of/a/gateway":                           16 << 20, // has a limit of its own
	} {
		if got := requestLimit(procedure); got != want {
			t.Errorf("%s: %d KiB, not %d KiB", procedure, got>>10, want>>10)
		}
	}
}

// escaped returns the longest JSON of a text.
func escaped(s string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(s)) {
		const digits = "0123456789abcdef"
		b.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			b.WriteByte(digits[unit>>shift&15])
		}
	}
	return b.String()
}

// Every text that a rule bounds may be as long as the rule says, in the longest spelling.
func TestLongestMessagesFitIntoTheirLimits(t *testing.T) {
	checked := 0
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			if !strings.HasPrefix(string(m.FullName()), "ledgerd.") {
				continue
			}
			for j := range m.Fields().Len() {
				f := m.Fields().Get(j)
				r := rulesOf(f).GetString()
				size := 0
				switch {
				case f.IsList() || f.IsMap() || f.Kind() != protoreflect.StringKind:
					continue
				case r.HasMaxLen():
					size = len(escaped(strings.Repeat("\U0001F600", int(r.GetMaxLen()))))
				case r.HasMaxBytes():
					size = len(escaped(strings.Repeat("x", int(r.GetMaxBytes()))))
				default:
					continue
				}
				checked++
				n := (&measure{}).field(f)
				if r.GetPattern() == "" && n < min(size, unbounded) {
					t.Errorf("%s may take %d bytes, not %d", f.FullName(), size, n)
				}
			}
		}
		return true
	})
	if checked < 50 {
		t.Errorf("only %d fields were checked", checked)
	}
	hold := &ledgerv1.HoldRequest{BizNo: strings.Repeat("b", 128), From: strings.Repeat("ä", 256),
		To:    strings.Repeat("ä", 256),
		Asset: "CNY", Amount: "1.00", Metadata: map[string]string{"note": strings.Repeat("\x01", maxMetadataBytes-4)}}
	for _, x := range []struct {
		procedure string
		m         proto.Message
	}{
		{ledgerv1connect.LedgerServiceHoldProcedure, hold},
		{"/ledgerd.lock.v1.LockService/Acquire", &lockv1.AcquireRequest{Name: strings.Repeat("日", 256)}},
	} {
		raw, err := protojson.MarshalOptions{Multiline: true, Indent: "        "}.Marshal(x.m)
		if err != nil || !json.Valid(raw) || len(raw) > requestLimit(x.procedure) {
			t.Errorf("%s: %d bytes of %d: %v", x.procedure, len(raw), requestLimit(x.procedure), err)
		}
	}
}

func TestLongestMatchOfAPattern(t *testing.T) {
	for pattern, want := range map[string]int{"^[a-z][a-z0-9_]{0,63}$": 64, "^(ab|c){2,5}$": 10, "^a+$": unbounded,
		"^a*b$":    unbounded,
		"^(x?y)?$": 2, "[a-z]{3}": unbounded, "^a{2,}$": unbounded} {
		if got, n := text(stringRules(pattern)), min(want*jsonCharacter, unbounded)+2; got != n {
			t.Errorf("%s: %d, not %d", pattern, got, n)
		}
	}
}

func stringRules(pattern string) *validate.StringRules {
	return validate.StringRules_builder{Pattern: &pattern}.Build()
}
