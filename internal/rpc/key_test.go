package rpc

import (
	"bytes"
	"encoding/hex"
	"flag"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

var update = flag.Bool("update", false, "rewrite testdata")

// golden compares with a file of testdata. Databases hold these bytes, so they must not change.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: incompatible with recorded keys:\ngot  %s\nwant %s", name, got, want)
	}
}

func full() *ledgerv1.TransferRequest {
	return &ledgerv1.TransferRequest{BizNo: "order-1", Type: "charge",
		Metadata: map[string]string{"b": "2", "a": "1", "": "empty"},
		Postings: []*ledgerv1.Posting{{From: "user:1", To: "shop", Asset: "CNY", Amount: "12.30"},
			{From: "user:1", To: "fees", Asset: "CNY", Form: ledgerv1.AmountForm_AMOUNT_FORM_ALL_AVAILABLE}},
		EffectiveTime: &timestamppb.Timestamp{Seconds: 1_700_000_000, Nanos: 123_000},
		Conditions: []*ledgerv1.Condition{{Account: &ledgerv1.AccountRef{Code: "user:1", Asset: "CNY"},
			Version: proto.Int64(0), BalanceAtLeast: proto.String("-1.50")}}}
}

// plain is the fingerprint of a server without a master key.
func plain(m proto.Message) []byte { return (&Mutations{}).fingerprint(m) }

func TestFingerprintIsStable(t *testing.T) {
	r := full()
	lines := []string{hex.EncodeToString(appendCanonical(nil, r.ProtoReflect())), hex.EncodeToString(plain(r)),
		hex.EncodeToString(plain(&ledgerv1.TransferBatchRequest{AllOrNothing: true,
			Items: []*ledgerv1.TransferBatchItem{{Transfer: r, IdempotencyKey: "k"}}})),
		hex.EncodeToString(plain(&ledgerv1.HoldRequest{BizNo: "h", From: "a", Asset: "CNY", Amount: "1.0",
			Life: durationpb.New(1500_000_000)})),
		hex.EncodeToString(plain(&ledgerv1.ReverseRequest{BizNo: "r",
			Target: &ledgerv1.ReverseRequest_TransferId{TransferId: -1}})),
		hex.EncodeToString(plain(&ledgerv1.ListAssetsRequest{}))}
	golden(t, "fingerprints.txt", strings.Join(lines, "\n")+"\n")
}

func TestFingerprintDependsOnContentOnly(t *testing.T) {
	a := full()
	for what, change := range map[string]func(r *ledgerv1.TransferRequest){
		"biz_no": func(r *ledgerv1.TransferRequest) { r.BizNo = "order-2" },
		"type":   func(r *ledgerv1.TransferRequest) { r.Type = "" },
		"amount": func(r *ledgerv1.TransferRequest) { r.Postings[0].Amount = "12.31" },
		"form":   func(r *ledgerv1.TransferRequest) { r.Postings[1].Form = 1 },
		"order": func(r *ledgerv1.TransferRequest) {
			r.Postings[0], r.Postings[1] = r.Postings[1],
				r.Postings[0]
		},
		"one posting less":   func(r *ledgerv1.TransferRequest) { r.Postings = r.Postings[:1] },
		"metadata value":     func(r *ledgerv1.TransferRequest) { r.Metadata["a"] = "2" },
		"metadata name":      func(r *ledgerv1.TransferRequest) { delete(r.Metadata, "a"); r.Metadata["c"] = "1" },
		"metadata swapped":   func(r *ledgerv1.TransferRequest) { r.Metadata["a"], r.Metadata["b"] = "2", "1" },
		"time":               func(r *ledgerv1.TransferRequest) { r.EffectiveTime.Nanos++ },
		"version 0 is not 1": func(r *ledgerv1.TransferRequest) { r.Conditions[0].Version = proto.Int64(1) },
		"version 0 is set":   func(r *ledgerv1.TransferRequest) { r.Conditions[0].Version = nil },
		"least balance": func(r *ledgerv1.TransferRequest) {
			r.Conditions[0].BalanceAtLeast = proto.String("1.50")
		},
		"dry run": func(r *ledgerv1.TransferRequest) { r.DryRun = true },
		"boundary": func(r *ledgerv1.TransferRequest) {
			r.Postings[0].From, r.Postings[0].To = "user:1s",
				"hop"
		},
	} {
		b := proto.Clone(a).(*ledgerv1.TransferRequest)
		change(b)
		if bytes.Equal(plain(a), plain(b)) {
			t.Errorf("%s does not change the fingerprint", what)
		}
	}
	b := proto.Clone(a).(*ledgerv1.TransferRequest)
	b.Postings[0].Amount, b.Conditions[0].BalanceAtLeast = "12.3000", proto.String("-1.5")
	if !bytes.Equal(plain(a), plain(b)) {
		t.Error("equal amounts in another notation change the fingerprint")
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"", "a", `"a"`, `"`, `""`, `"\""`, `"\\"`, `"\a"`, "a b", "ü", "\x00", `"a"b"`,
		strings.Repeat("k", 256), "#"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if key, life, err := parseKeyHeader(s); err == nil && (life < 0 || len(key) < 1 || len(key) > 255) {
			t.Fatalf("%q is accepted as %q for %v", s, key, life)
		}
		key, err := ParseKey(s)
		if err != nil {
			return
		}
		if len(key) < 1 || len(key) > 255 ||
			strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q is accepted as %q", s, key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := ParseKey(quoted); err != nil || again != key {
			t.Fatalf("%q, quoted as %s, is %q, %v", key, quoted, again, err)
		}
		if s[0] != '"' && key != s {
			t.Fatalf("bare %q is %q", s, key)
		}
	})
}

func TestKeyHeaderMaySetItsLife(t *testing.T) {
	for header, want := range map[string]time.Duration{
		`"a";life=60`: time.Minute, `"a"; life=2678400`: 31 * 24 * time.Hour, `"a\";life=70";life=3600`: time.Hour,
		`"a"`: 0, `a;b`: 0, `a`: 0,
	} {
		key, life, err := parseKeyHeader(header)
		if err != nil || life != want || strings.HasPrefix(header, `"`) && strings.Contains(key, "life=3600") {
			t.Errorf("%s is %q for %v, %v", header, key, life, err)
		}
	}
	for _, header := range []string{`"a";life=59`, `"a";life=2678401`, `"a";life=`, `"a";life=-60`, `"a";life=6e1`,
		`"a"life=60`, `"a";`, `"a";age=60`,
		`"a" ;life=60`, `a;life=60`, `a; life=60`, `"a`, `"a";life=99999999999`, `"";life=60`, `";life=60`, `"a"x`} {
		if key, life, err := parseKeyHeader(header); err == nil {
			t.Errorf("%s is %q for %v", header, key, life)
		}
	}
}

func TestKeyHeaderIsSentOnce(t *testing.T) {
	_, _, err := readKey(http.Header{KeyHeader: {"a", "a"}})
	f := fault.Of(err)
	if f == nil || f.Reason != commit.KeyInvalid || len(f.Fields) != 1 || f.Fields[0].Path != KeyHeader {
		t.Errorf("%v", err)
	}
}

// FuzzFingerprint decodes requests from bytes. Different requests must have different canonical forms, and a request
// must keep its form through JSON and back.
func FuzzFingerprint(f *testing.F) {
	seeds := []proto.Message{full(), &ledgerv1.TransferRequest{}, &ledgerv1.TransferRequest{BizNo: "\x02\x00"},
		&ledgerv1.TransferRequest{Postings: []*ledgerv1.Posting{{}, {}}},
		&ledgerv1.TransferRequest{Metadata: map[string]string{"a": "", "": "a"}}}
	for _, a := range seeds {
		for _, b := range seeds {
			x, _ := proto.Marshal(a)
			y, _ := proto.Marshal(b)
			f.Add(x, y)
		}
	}
	f.Fuzz(func(t *testing.T, x, y []byte) {
		a, b := new(ledgerv1.TransferBatchItem), new(ledgerv1.TransferBatchItem)
		a.Transfer, b.Transfer = read(x), read(y)
		if a.Transfer == nil || b.Transfer == nil {
			return
		}
		first, second := appendCanonical(nil, a.ProtoReflect()), appendCanonical(nil, b.ProtoReflect())
		normalise(a.ProtoReflect())
		normalise(b.ProtoReflect())
		if proto.Equal(a, b) != bytes.Equal(first, second) {
			t.Fatalf("%v\n%x\n%v\n%x", a, first, b, second)
		}
		text, err := protojson.Marshal(a)
		if err != nil {
			return // a time or duration that JSON cannot express
		}
		again := new(ledgerv1.TransferBatchItem)
		if err := protojson.Unmarshal(text, again); err != nil {
			t.Fatal(err)
		}
		if third := appendCanonical(nil, again.ProtoReflect()); !bytes.Equal(first, third) {
			t.Fatalf("through JSON %s:\n%x\n%x", text, first, third)
		}
	})
}

func read(b []byte) *ledgerv1.TransferRequest {
	r := new(ledgerv1.TransferRequest)
	if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, r) != nil {
		return nil
	}
	return r
}

// normalise replaces every amount by its canonical form.
func normalise(m protoreflect.Message) {
	r := m.Interface().(*ledgerv1.TransferBatchItem).GetTransfer()
	for _, p := range r.GetPostings() {
		p.Amount = canonicalDecimal(p.Amount)
	}
	for _, c := range r.GetConditions() {
		if c.BalanceAtLeast != nil {
			c.BalanceAtLeast = proto.String(canonicalDecimal(*c.BalanceAtLeast))
		}
	}
}

// A plain hash of a phone number can be reversed by trying all numbers.
func TestFingerprintsOfPersonalDataAreKeyed(t *testing.T) {
	pack := func(m proto.Message) *batchv1.Operation {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return &batchv1.Operation{Request: a}
	}
	code := &notifyv1.SendCodeRequest{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678", Type: "login"}
	with, other, none := &Mutations{Pepper: []byte("a key")}, &Mutations{Pepper: []byte("another")}, &Mutations{}
	for _, m := range []proto.Message{code, &notifyv1.VerifyCodeRequest{Recipient: "+8613812345678", Code: "123456"},
		&notifyv1.SendRequest{Recipient: "+8613812345678"},
		&notifyv1.SendBatchRequest{}, &paymentv1.CreatePaymentRequest{Payer: "o1", PayerIp: "192.0.2.1"},
		&batchv1.ExecuteRequest{Operations: []*batchv1.Operation{pack(full()),
			pack(code)}}} {
		a, b := with.fingerprint(m), other.fingerprint(m)
		if len(a) != commit.FingerprintSize || bytes.Equal(a[1:], b[1:]) || bytes.Equal(a[1:], plain(m)[1:]) ||
			a[0] == fingerprintVersion || !bytes.Equal(a, with.fingerprint(m)) {
			t.Errorf("%T: %x, with another key %x, without %x", m, a, b, plain(m))
		}
	}
	for _, m := range []proto.Message{full(), &batchv1.ExecuteRequest{Operations: []*batchv1.Operation{pack(full())}}} {
		if !bytes.Equal(with.fingerprint(m), plain(m)) ||
			!bytes.Equal(none.fingerprint(code), plain(code)) {
			t.Errorf("%T: not the plain fingerprint", m)
		}
	}
}
