package rpc

import (
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Callers write names of enums, so numbers as in protovalidate's "must not be in list [0]" do not help them.
func TestEnumErrorsListTheAllowedNames(t *testing.T) {
	t.Parallel()
	const all = "one of CHANNEL_SMS, CHANNEL_EMAIL, CHANNEL_PUSH, CHANNEL_WEBHOOK"
	for _, c := range []struct {
		request proto.Message
		want    string
	}{
		{&notifyv1.SendRequest{}, "must be set, to " + all},
		{&notifyv1.ListMessagesRequest{Channel: 99}, "must be " + all},
		{&notifyv1.SendCodeRequest{Channel: notifyv1.Channel_CHANNEL_PUSH},
			"must be one of CHANNEL_SMS, CHANNEL_EMAIL"},
	} {
		var got string
		for _, f := range fault.Of(check(c.request)).Fields {
			if f.Path == "channel" {
				got = f.Description
			}
		}
		if got != c.want {
			t.Errorf("%T: %q, want %q", c.request, got, c.want)
		}
	}
}

// Errors say what to send. The texts of protovalidate are rules of schemas: "value is required", a regex, "must be at
// least 1 characters".
func TestBrokenRulesSayWhatToSend(t *testing.T) {
	t.Parallel()
	const name = "1 to 64 characters of a-z, 0-9, dots, _ and -, the first of a-z and 0-9"
	for _, c := range []struct {
		request     proto.Message
		field, want string
	}{
		{&orderv1.GetOrderRequest{}, "order_no", "must not be empty"},
		{&salev1.GrabRequest{}, "grab", "must be set"},
		{&salev1.GrabRequest{}, "sale", "must not be empty: " + name},
		{&orderv1.ListOrdersRequest{Machine: "A"}, "machine", "must be " + name},
		{&orderv1.MoveOrderRequest{To: "A"}, "to", "must be 1 to 64 characters of a-z, 0-9 and _, the first of a-z"},
		{&orderv1.CancelOrderRequest{Cause: "creation"}, "cause", "must not be timer or creation: reserved"},
		{&salev1.IssueCouponsRequest{Codes: []string{"A", "B", "C", "B"}}, "codes[3]",
			"must not be the same as an element before it"},
		{&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{}}}, "assets[0].code",
			"must not be empty"},
		{&salev1.GrabManyRequest{}, "grabs", "must have an element"},
		{&salev1.GrabManyRequest{Grabs: make([]*salev1.Grab, 1001)}, "grabs", "must have at most 1000 elements"},
		{&salev1.PutSaleRequest{Sale: new(salev1.Sale)}, "sale.order", "must be set, or coupon"},
		{&orderv1.CreateOrderRequest{Messages: []*notifyv1.SendRequest{{}}}, "messages[0].content",
			"must be set, or template"},
		{&machinev1.DefineMachineRequest{Definition: &machinev1.Definition{States: []*machinev1.State{
			{OrderParts: 99}}}}, "definition.states[0].order_parts", "must be one of ORDER_PARTS_CONFIRM, " +
			"ORDER_PARTS_CANCEL"},
		{&machinev1.DefineMachineRequest{Definition: &machinev1.Definition{Moves: []*machinev1.AllowedMove{
			{By: make([]machinev1.Actor, 1)}}}}, "definition.moves[0].by[0]",
			"must be one of ACTOR_CALLER, ACTOR_TIMER, ACTOR_FLOW"},
	} {
		var got []string
		for _, f := range fault.Of(check(c.request)).Fields {
			if got = append(got, f.Path+": "+f.Description); f.Path == c.field && f.Description == c.want {
				got = nil
				break
			}
		}
		if got != nil {
			t.Errorf("%T: no %s: %s, but %q", c.request, c.field, c.want, got)
		}
	}
}

// Errors describe a pattern in words, not as a regular expression.
func TestPatternsAreSaidInWords(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"^[A-Za-z0-9_.:-]{0,64}$":  "must be at most 64 characters of A-Z, a-z, 0-9, _, dots, colons and -",
		"^([0-9A-Za-z_-]{6,32})?$": "must be 6 to 32 characters of 0-9, A-Z, a-z, _ and -",
		"^[A-Za-z0-9][A-Za-z0-9._/-]*$": "must consist of A-Z, a-z, 0-9, dots, _, slashes and -, the first of A-Z, " +
			"a-z and 0-9",
	} {
		if got := describePattern(pattern); got != want {
			t.Errorf("%s: %s", pattern, got)
		}
	}
	n := 0
	protoregistry.GlobalTypes.RangeMessages(func(m protoreflect.MessageType) bool {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			rules, _ := proto.GetExtension(fields.Get(i).Options(), validate.E_Field).(*validate.FieldRules)
			for _, r := range []*validate.FieldRules{rules, rules.GetRepeated().GetItems(), rules.GetMap().GetKeys(),
				rules.GetMap().GetValues()} {
				if pattern := r.GetString().GetPattern(); pattern != "" &&
					strings.HasPrefix(string(m.Descriptor().FullName()), "ledgerd.") {
					if n++; describePattern(pattern) == "" {
						t.Errorf("%s: %s is not said in words", fields.Get(i).FullName(), pattern)
					}
				}
			}
		}
		return true
	})
	if n < 40 {
		t.Errorf("only %d patterns", n)
	}
}

func TestInvalidPartsHaveTheirPath(t *testing.T) {
	t.Parallel()
	nul := func(field string) *ledgerv1.TransferRequest {
		r := simple()
		r.Postings = append(r.Postings, &ledgerv1.Posting{From: "a", To: "b", Asset: "CNY", Amount: "1"})
		m := r.Postings[1].ProtoReflect()
		m.Set(m.Descriptor().Fields().ByName(protoreflect.Name(field)), protoreflect.ValueOfString("a\x00"))
		return r
	}
	noted := func(metadata map[string]string) *ledgerv1.TransferRequest {
		r := simple()
		r.Metadata = metadata
		return r
	}
	unknown := func(m proto.Message, parts ...*ledgerv1.Posting) proto.Message {
		b := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
		if len(parts) > 0 {
			parts[0].ProtoReflect().SetUnknown(b)
		} else {
			m.ProtoReflect().SetUnknown(b)
		}
		return m
	}
	variables, err := structpb.NewStruct(map[string]any{"items": []any{"a", map[string]any{"name": "b\x00"}}})
	if err != nil {
		t.Fatal(err)
	}
	part := simple()
	for _, x := range []struct {
		request    proto.Message
		path, text string
	}{
		{nul("from"), "postings[1].from", "postings[1].from: must not contain a NUL"},
		{&ledgerv1.TransferBatchRequest{AllOrNothing: true, Items: []*ledgerv1.TransferBatchItem{{Transfer: simple()},
			{Transfer: nul("to")}}}, "items[1].transfer.postings[1].to", "NUL"},
		{noted(map[string]string{"b": "a\x00"}), "metadata.b", "NUL"},
		{noted(map[string]string{"a\x00": "b"}), "metadata", "metadata: names must not contain a NUL"},
		{noted(map[string]string{strings.Repeat("k", 1000): "\x00"}), "metadata", "NUL"},
		{&notifyv1.PreviewTemplateRequest{Template: &notifyv1.TemplateUse{Variables: variables}},
			"template.variables.items[1].name", "NUL"},
		{&ledgerv1.ReverseRequest{BizNo: "a"}, "transfer_id", "must be set, or transfer_biz_no"},
		{unknown(part, part.Postings[0]), "postings[0].1000", "does not know"},
		{unknown(simple()), "1000", "does not know"},
	} {
		f, path := fault.Of(check(x.request)), ""
		if len(f.Fields) > 0 {
			path = f.Fields[0].Path
		}
		if path != x.path || !strings.Contains(f.Message, x.text) {
			t.Errorf("%q: %s, want %q: %s", path, f.Message, x.path, x.text)
		}
	}
}
