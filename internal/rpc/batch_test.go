package rpc_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

func item(bizNo, from, amount, key string) *ledgerv1.TransferBatchItem {
	return &ledgerv1.TransferBatchItem{IdempotencyKey: key,
		Transfer: &ledgerv1.TransferRequest{BizNo: bizNo, Postings: posting(from, "world", "COIN", amount)}}
}

func (c *caller) batch(r *ledgerv1.TransferBatchRequest, headers ...string) (*ledgerv1.TransferBatchResponse, answer) {
	c.T.Helper()
	a := c.call(connectProto, "TransferBatch", r, headers...)
	if a.Code != "" {
		c.T.Fatalf("%s: %s", a.Code, a.Message)
	}
	res := new(ledgerv1.TransferBatchResponse)
	connectProto.Decode(c.T, a.Raw, res)
	return res, a
}

func TestBatchItemsAreIndependent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	lone := ok(c, "Transfer", item("lone", "u:a", "1", "").GetTransfer(), new(ledgerv1.TransferResponse),
		"Idempotency-Key", "lone-key")
	r := &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{
		item("one", "u:a", "1", "one-key"),
		item("much", "u:a", "1000", "much-key"),
		item("one", "u:a", "1.00", "one-key"), // a repeat within the batch
		item("lone", "u:a", "1", `"lone-key"`),
		item("lone", "u:a", "2", "lone-key"),
		item("two", "u:a", "1", ""),
		item("two", "u:a", "1", ""),
		item("bad\n", "u:a", "1", ""),
		item("three", "u:a", "1", "bad\nkey"),
		item("four", "nobody", "1", ""),
	}}
	res, a := c.batch(r)
	if a.Replayed() || len(res.GetResults()) != len(r.Items) {
		t.Fatalf("replayed %v, %d results", a.Replayed(), len(res.GetResults()))
	}
	type row struct {
		reason            string
		existed, replayed bool
	}
	want := []row{{}, {reason: "INSUFFICIENT_FUNDS"}, {replayed: true}, {replayed: true},
		{reason: "IDEMPOTENCY_KEY_REUSED"}, {}, {existed: true},
		{reason: "FIELD_INVALID"}, {reason: "IDEMPOTENCY_KEY_INVALID"}, {reason: "ACCOUNT_NOT_FOUND"}}
	for i, x := range res.GetResults() {
		if got := (row{x.GetError().GetReason(), x.GetExisted(), x.GetReplayed()}); got != want[i] ||
			(x.GetTransfer() == nil) == (got.reason == "") {
			t.Errorf("item %d: %+v, want %+v (%v)", i, got, want[i], x.GetError())
		}
	}
	if !proto.Equal(res.Results[3].GetTransfer(), lone.GetTransfer()) ||
		!proto.Equal(res.Results[2].GetTransfer(), res.Results[0].GetTransfer()) {
		t.Error("a replayed item differs from the first response")
	}
	e := res.Results[1].GetError()
	if e.GetCode() != "failed_precondition" || e.GetMetadata()["available"] == "" ||
		e.GetDetail().GetNextStep() != errorsv1.NextStep_NEXT_STEP_NEW_KEY {
		t.Errorf("refused item: %v", e)
	}
	again, _ := c.batch(r)
	if x := again.GetResults(); !x[0].GetReplayed() || !x[1].GetReplayed() ||
		x[1].GetError().GetReason() != "INSUFFICIENT_FUNDS" || !x[5].GetExisted() {
		t.Errorf("again: %v", again)
	}
	if a := c.call(connectJSON, "Transfer", r.Items[0].GetTransfer(), "Idempotency-Key", "one-key"); !a.Replayed() {
		t.Error("Transfer does not accept the key of an item")
	}
}

func TestInterruptedBatchContinues(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	r := &ledgerv1.TransferBatchRequest{}
	for i := range 20 {
		r.Items = append(r.Items, item(fmt.Sprint("n", i), "u:a", "1", ""))
	}
	r.Items[7] = item("n7", "u:a", "1000", "") // refused
	whole, first := c.batch(r, "Idempotency-Key", "k")
	entries := s.Count("select count(*) from ledger_entries")
	if same, a := c.batch(r, "Idempotency-Key", "k"); !bytes.Equal(a.Raw, first.Raw) || !a.Replayed() ||
		!proto.Equal(same, whole) {
		t.Errorf("again: replayed %v", a.Replayed())
	}
	// The state after a server died after twelve items.
	if _, err := s.Pool.Exec(context.Background(),
		"delete from commit_keys where operation = 'ledger.transfer_batch_item' "+
			"and split_part(key, '#', 2)::int >= 12"); err != nil {
		t.Fatal(err)
	}
	rest, a := c.batch(r, "Idempotency-Key", "k")
	for i, x := range rest.GetResults() {
		if x.GetExisted() != (i >= 12) || x.GetTransfer().GetId() != whole.GetResults()[i].GetTransfer().GetId() {
			t.Errorf("item %d: %v", i, x)
		}
	}
	if !a.Replayed() || rest.GetResults()[7].GetError().GetReason() != "INSUFFICIENT_FUNDS" {
		t.Errorf("replayed %v, item 7: %v", a.Replayed(), rest.GetResults()[7])
	}
	if now := s.Count("select count(*) from ledger_entries"); now != entries {
		t.Errorf("%d new entries", now-entries)
	}
	other := proto.Clone(r).(*ledgerv1.TransferBatchRequest)
	other.Items = append(other.Items, item("more", "u:a", "1", ""))
	res, _ := c.batch(other, "Idempotency-Key", "k")
	for i, x := range res.GetResults()[:12] {
		if x.GetError().GetReason() != "IDEMPOTENCY_KEY_REUSED" {
			t.Errorf("another batch with the same key, item %d: %v", i, x)
		}
	}
}

func TestBatchOfAllOrNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	there := ok(c, "Transfer", item("there", "u:a", "1", "").GetTransfer(), new(ledgerv1.TransferResponse))
	r := &ledgerv1.TransferBatchRequest{AllOrNothing: true,
		Items: []*ledgerv1.TransferBatchItem{item("x", "u:a", "1", ""), item("there", "u:a", "1", ""),
			item("y", "u:a", "2", "")}}
	first, a := c.batch(r, "Idempotency-Key", "k")
	if !first.GetResults()[1].GetExisted() ||
		first.GetResults()[1].GetTransfer().GetId() != there.GetTransfer().GetId() ||
		first.GetResults()[0].GetExisted() {
		t.Errorf("first: %v", first)
	}
	ok(c, "Reverse", &ledgerv1.ReverseRequest{BizNo: "undo",
		Target: &ledgerv1.ReverseRequest_TransferBizNo{TransferBizNo: "x"}}, new(ledgerv1.ReverseResponse))
	if _, again := c.batch(r, "Idempotency-Key", "k"); !bytes.Equal(a.Raw, again.Raw) || !again.Replayed() {
		t.Errorf("replayed from ids after a reversal:\n%q\n%q", a.Raw, again.Raw)
	}
	if n := s.Count("select octet_length(answer) from commit_keys where operation = 'ledger.transfer_batch'"); n > 40 {
		t.Errorf("the recorded answer has %d bytes", n)
	}
	before := s.dump("mine")
	no := &ledgerv1.TransferBatchRequest{AllOrNothing: true,
		Items: []*ledgerv1.TransferBatchItem{item("p", "u:a", "1", ""), item("q", "u:a", "1000", "")}}
	if a := c.call(connectJSON, "TransferBatch", no); a.Code != "failed_precondition" ||
		a.Reason(t) != "INSUFFICIENT_FUNDS" || a.State("available") == "" {
		t.Errorf("one fails: %s %s", a.Code, a.Message)
	}
	dry := proto.Clone(r).(*ledgerv1.TransferBatchRequest)
	dry.DryRun, dry.Items[0].Transfer.BizNo = true, "dry"
	if res, _ := c.batch(dry, "Idempotency-Key", "dry"); len(res.GetResults()) != 3 ||
		res.GetResults()[0].GetTransfer() == nil {
		t.Errorf("dry: %v", res)
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	for what, bad := range map[string]*ledgerv1.TransferBatchRequest{
		"keys of items": {AllOrNothing: true, Items: []*ledgerv1.TransferBatchItem{item("x", "u:a", "1", "k")}},
		"dry, each":     {DryRun: true, Items: []*ledgerv1.TransferBatchItem{item("x", "u:a", "1", "")}},
		"dry, one": {AllOrNothing: true,
			Items: []*ledgerv1.TransferBatchItem{{Transfer: &ledgerv1.TransferRequest{BizNo: "x",
				Postings: posting("u:a", "world", "COIN", "1"), DryRun: true}}}},
		"no items": {}, "no transfer": {AllOrNothing: true, Items: []*ledgerv1.TransferBatchItem{{}}},
		"one is bad": {AllOrNothing: true,
			Items: []*ledgerv1.TransferBatchItem{item("x", "u:a", "1", ""), item("", "u:a", "1", "")}},
		"10,001 more": {Items: slices.Repeat([]*ledgerv1.TransferBatchItem{item("x", "u:a", "1", "")}, 10_001)},
		"10,001 bad":  {Items: slices.Repeat([]*ledgerv1.TransferBatchItem{{}}, 10_001)},
		"a new field": unknownTo(&ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{item("x", "u:a",
			"1", ""), {}}}),
	} {
		if a := c.call(grpc, "TransferBatch", bad); a.Code != "invalid_argument" || a.Reason(t) != "FIELD_INVALID" {
			t.Errorf("%s: %s %s", what, a.Code, a.Message)
		}
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
}

// unknownTo adds an unknown field to a message.
func unknownTo[M proto.Message](m M) M {
	m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "?"))
	return m
}

// An invalid item gets the same error as a single call would, and the others run.
func TestInvalidItemsFailAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	many := item("many", "u:a", "1", "many")
	many.Transfer.Postings = slices.Repeat(many.Transfer.Postings, 1001)
	noted := item("noted", "u:a", "1", "noted")
	noted.Transfer.Metadata = map[string]string{"note": "\x00"}
	strange := item("strange", "u:a", "1", "strange")
	unknownTo(strange.Transfer)
	strangeInside := item("inside", "u:a", "1", "inside")
	unknownTo(strangeInside.Transfer.Postings[0])
	garbage := item("garbage", "u:a", "1", "garbage") // in the field that the server uses for decoding errors
	garbage.Transfer.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, protowire.MaxValidNumber,
		protowire.BytesType), "\xff"))
	bad := []*ledgerv1.TransferBatchItem{garbage, item("", "u:a", "1", "empty"), item("nowhere", "", "x", "nowhere"),
		many, noted, strange, strangeInside,
		item("number", "u:a", "1e3", "number"), item("control\n", "u:a", "1", "control"),
		item("key", "u:a", "1", "a\tb"),
		item("long", "u:a", "1", strings.Repeat("k", 256)), item("", "u:a", "1", strings.Repeat("k", 600))}
	first := len(bad)
	r := &ledgerv1.TransferBatchRequest{Items: append(bad, item("good", "u:a", "1", "good"),
		item("poor", "u:a", "1000", "poor"))}
	res, a := c.batch(r, "X-Request-ID", "now")
	for i, item := range bad {
		got := res.GetResults()[i].GetError()
		lone := c.call(connectProto, "Transfer", item.GetTransfer(), "Idempotency-Key", item.GetIdempotencyKey(),
			"X-Request-ID", "now")
		want := &ledgerv1.ItemError{Code: lone.Code, Reason: lone.Reason(t), Message: lone.Message}
		want.Detail, _ = servertest.Detail(lone.Answer, new(errorsv1.ErrorDetail))
		fields, _ := servertest.Detail(lone.Answer, new(errdetails.BadRequest))
		for _, v := range fields.GetFieldViolations() {
			want.FieldViolations = append(want.FieldViolations, &ledgerv1.FieldViolation{
				Field:       strings.ReplaceAll(v.GetField(), "Idempotency-Key", "idempotency_key"),
				Description: v.GetDescription()})
		}
		if !proto.Equal(got, want) || got.GetCode() != "invalid_argument" {
			t.Errorf("item %d, %s:\nitem   %v\nsingle %v", i, item.GetTransfer().GetBizNo(), got, want)
		}
	}
	if x := res.GetResults()[first:]; x[0].GetTransfer() == nil || x[1].GetError().GetReason() != "INSUFFICIENT_FUNDS" {
		t.Errorf("the valid item: %v", x)
	}
	if n := s.Count("select count(*) from commit_keys"); a.Replayed() || n != 2 {
		t.Errorf("replayed %v, %d keys: a bad request was recorded", a.Replayed(), n)
	}
	for _, b := range bad[:first-3] {
		b.Transfer = item(b.GetIdempotencyKey(), "u:a", "1", "").GetTransfer()
	}
	res, _ = c.batch(&ledgerv1.TransferBatchRequest{Items: bad[:first-3]})
	for i, x := range res.GetResults() {
		if x.GetTransfer() == nil || x.GetReplayed() {
			t.Errorf("corrected item %d with the same key: %v", i, x)
		}
	}
}

func TestQuotesDoNotCountForTheLengthOfItemKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	for _, key := range []string{strings.Repeat("k", 255), strings.Repeat(`"`, 255), `\`} {
		quoted := `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(key) + `"`
		r := &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{item(key[:1], "u:a", "1", quoted)}}
		res, _ := c.batch(r)
		lone := c.call(connectJSON, "Transfer", r.Items[0].GetTransfer(), "Idempotency-Key", quoted)
		if res.GetResults()[0].GetTransfer() == nil || !lone.Replayed() {
			t.Errorf("%.10s…: %v, %s", quoted, res, lone.Raw)
		}
	}
}

func TestEmptyItemsFailAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	dry := item("dry", "u:a", "1", "")
	dry.Transfer.DryRun = true
	r := &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{{},
		unknownTo(item("strange", "u:a", "1", "")), dry, item("good", "u:a", "1", "")}}
	for range 2 {
		res, a := c.batch(r, "Idempotency-Key", "k")
		for i, want := range []string{"transfer", "1000", "dry_run"} {
			e := res.GetResults()[i].GetError()
			if e.GetReason() != "FIELD_INVALID" || len(e.GetFieldViolations()) != 1 ||
				e.GetFieldViolations()[0].GetField() != want {
				t.Errorf("item %d: %v", i, e)
			}
		}
		if a.Replayed() || res.GetResults()[3].GetTransfer() == nil {
			t.Errorf("replayed %v, %v", a.Replayed(), res.GetResults()[3])
		}
	}
	if n := s.Count("select count(*) from commit_keys"); n != 1 {
		t.Errorf("%d keys", n)
	}
}

func TestTooManyInvalidItemsFailTheCall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	invalid := make([]*ledgerv1.TransferBatchItem, 100)
	for i := range invalid {
		invalid[i] = new(ledgerv1.TransferBatchItem)
	}
	good := item("good", "u:a", "1", "")
	more := c.call(connectJSON, "TransferBatch", &ledgerv1.TransferBatchRequest{
		Items: append([]*ledgerv1.TransferBatchItem{good, new(ledgerv1.TransferBatchItem)}, invalid...)})
	if f := more.Fields(t); more.Reason(t) != "FIELD_INVALID" || len(f) != fault.MaxFields || f[0] != "items[1]" {
		t.Errorf("101 invalid items: %s %s, fields %v", more.Code, more.Message, f)
	}
	res, _ := c.batch(&ledgerv1.TransferBatchRequest{Items: append(invalid, good)})
	if r := res.GetResults(); len(r) != 101 || r[0].GetError() == nil || r[100].GetTransfer() == nil ||
		r[100].GetExisted() {
		t.Errorf("100 invalid items: %v", res)
	}
}

func TestBizNoRepeatsWithoutAKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	for name, change := range map[string]change{"Transfer": changes["Transfer"], "Hold": changes["Hold"],
		"Capture": changes["Capture"], "Reverse": changes["Reverse"]} {
		first := c.call(connectJSON, name, change.well("a"))
		again := c.call(connectJSON, name, change.well("a"), "Idempotency-Key", "late")
		if first.Code != "" || again.Code != "" || first.Replayed() || !again.Replayed() ||
			!bytes.Contains(again.Raw, []byte(`"existed":true`)) {
			t.Errorf("%s: %s\n%s", name, first.Raw, again.Raw)
		}
	}
	other := payment("a", "6")
	if a := c.call(connectJSON, "Transfer", other); a.Code != "already_exists" ||
		a.Reason(t) != "BIZ_NO_EXISTS_DIFFERENT" || a.State("differs") != "postings[0].amount" {
		t.Errorf("another amount: %s", a.Raw)
	}
}

func TestDryRunRecordsNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	before := s.dump("mine")
	for name, change := range changes {
		for _, request := range []func(string) proto.Message{change.well, change.refused} {
			if request == nil {
				continue
			}
			r := request("a")
			dry := r.ProtoReflect().Descriptor().Fields().ByName("dry_run")
			if b, batch := r.(*ledgerv1.TransferBatchRequest); dry == nil || batch && !b.AllOrNothing {
				continue
			}
			r.ProtoReflect().Set(dry, protoreflect.ValueOfBool(true))
			name, _, _ := strings.Cut(name, " ")
			a := c.call(connectJSON, name, r, "Idempotency-Key", "dry")
			if a.Replayed() || a.Code != "" && a.Reason(t) != change.reason {
				t.Errorf("%s: %s %s", name, a.Code, a.Message)
			}
		}
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	if a := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "dry"); a.Code != "" || a.Replayed() {
		t.Errorf("without dry_run: %s", a.Raw)
	}
}
