package rpc_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

func execute(operations ...*batchv1.Operation) *batchv1.ExecuteRequest {
	return &batchv1.ExecuteRequest{Operations: operations}
}

// operation returns an operation. References are written "field=operation:result".
func operation(name string, r proto.Message, references ...string) *batchv1.Operation {
	packed, err := anypb.New(r)
	if err != nil {
		panic(err)
	}
	o := &batchv1.Operation{Name: name, Request: packed}
	for _, text := range references {
		field, source, _ := strings.Cut(text, "=")
		from, result, _ := strings.Cut(source, ":")
		o.References = append(o.References, &batchv1.Reference{Field: field, Operation: from, Result: result})
	}
	return o
}

func pay(bizNo, from, to, amount string) *ledgerv1.TransferRequest {
	return &ledgerv1.TransferRequest{BizNo: bizNo, Postings: posting(from, to, "COIN", amount)}
}

func keep(bizNo, from, to, amount string) *ledgerv1.HoldRequest {
	return &ledgerv1.HoldRequest{BizNo: bizNo, From: from, To: to, Asset: "COIN", Amount: amount}
}

// executed returns the responses of a successful Execute.
func (c *caller) executed(r *batchv1.ExecuteRequest, headers ...string) (responses []proto.Message, existed []bool) {
	c.T.Helper()
	for _, x := range ok(c, "Batch.Execute", r, new(batchv1.ExecuteResponse), headers...).GetResults() {
		m, err := x.GetResponse().UnmarshalNew()
		if err != nil {
			c.T.Fatal(err)
		}
		responses, existed = append(responses, m), append(existed, x.GetExisted())
	}
	return responses, existed
}

func (c *caller) balance(code string) string {
	c.T.Helper()
	return ok(c, "GetBalance", &ledgerv1.GetBalanceRequest{Account: ref(code, "COIN")},
		new(ledgerv1.GetBalanceResponse)).GetBalance()
}

func TestOperationsSeeEarlierOperations(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a") // u:a has 90 available
	r := execute(
		operation("fund", pay("fund", "world", "empty:a", "25")),
		operation("keep", keep("kept", "empty:a", "u:a", "20.5")),
		operation("take", &ledgerv1.CaptureRequest{BizNo: "taken"}, "hold_id=keep:hold.id"),
		// Transfer the captured amount on, to an account that the hold did not name.
		operation("again", keep("again", "u:a", "", "1")),
		operation("elsewhere", &ledgerv1.CaptureRequest{BizNo: "elsewhere", To: "spent:a"}, "hold_id=again:hold.id"),
		operation("rest", pay("rest", "empty:a", "spent:a", ""),
			"postings[0].amount=take:transfer.entries[0].balance_after"),
		operation("back", &ledgerv1.ReverseRequest{BizNo: "back"}, "transfer_id=rest:transfer.id"),
	)
	got, _ := c.executed(r, "Idempotency-Key", "once")
	if n := len(got); n != 7 {
		t.Fatalf("%d results", n)
	}
	if rest := got[5].(*ledgerv1.TransferResponse).GetTransfer().GetEntries(); rest[1].GetAmount() != "4.50" {
		t.Errorf("the rest was %v", rest)
	}
	if back := got[6].(*ledgerv1.ReverseResponse).GetTransfer(); back.GetReversesId() !=
		got[5].(*ledgerv1.TransferResponse).GetTransfer().GetId() {
		t.Errorf("reversed %v", back)
	}
	for code, want := range map[string]string{"empty:a": "4.50", "u:a": "114.50", "spent:a": "1.00"} {
		if b := c.balance(code); b != want {
			t.Errorf("%s has %s, not %s", code, b, want)
		}
	}
	if n := s.Count("select count(distinct transfer_id >> 14) from ledger_transfers " +
		"where biz_no in ('fund', 'taken', 'elsewhere', 'rest', 'back')"); n != 1 {
		t.Errorf("%d transactions", n)
	}
	// A repeat without the key finds every operation by its own name.
	if _, existed := c.executed(r); fmt.Sprint(existed) != "[true true true true true true true]" {
		t.Errorf("existed %v", existed)
	}
}

func TestReferencesResolveToExistingResources(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	r := execute(
		operation("kept", keep("kept", "u:a", "", "20")),
		operation("paid", pay("paid", "u:a", "empty:a", "30")),
		operation("", &ledgerv1.CaptureRequest{BizNo: "taken", To: "spent:a", Amount: "5"}, "hold_id=kept:hold.id"),
		operation("", &ledgerv1.ReverseRequest{BizNo: "back"}, "transfer_id=paid:transfer.id"),
		operation("", &ledgerv1.ReleaseRequest{}, "hold_id=kept:hold.id"),
	)
	c.executed(execute(r.GetOperations()[:2]...))
	if _, existed := c.executed(r); fmt.Sprint(existed) != "[true true false false false]" {
		t.Errorf("existed %v", existed)
	}
	for code, want := range map[string]string{"empty:a": "0.00", "u:a": "90.00", "spent:a": "5.00"} {
		if b := c.balance(code); b != want {
			t.Errorf("%s has %s, not %s", code, b, want)
		}
	}
}

func TestRefusedOperationUndoesTheExecute(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	before := c.dump("mine")
	r := execute(operation("", pay("one", "u:a", "empty:a", "1")),
		operation("two", pay("two", "u:a", "empty:a", "1000")))
	for i, want := range []bool{false, true} {
		a := c.call(connectJSON, "Batch.Execute", r, "Idempotency-Key", "refused")
		if a.Reason(t) != "INSUFFICIENT_FUNDS" || a.Replayed() != want {
			t.Errorf("call %d: %s %s, replayed %v", i, a.Code, a.Message, a.Replayed())
		}
		if a.State("operation") != "1" || a.State("operation_name") != "two" || a.State("available") == "" {
			t.Errorf("state %v", a.Details)
		}
	}
	r.DryRun = true
	if a := c.call(connectJSON, "Batch.Execute", r); a.Reason(t) != "INSUFFICIENT_FUNDS" {
		t.Errorf("the dry run ended %s", a.Code)
	}
	dry, _ := c.executed(&batchv1.ExecuteRequest{Operations: r.GetOperations()[:1], DryRun: true}, "Idempotency-Key",
		"dry")
	if dry[0].(*ledgerv1.TransferResponse).GetTransfer().GetBizNo() != "one" {
		t.Errorf("a dry run answers %v", dry)
	}
	after := c.dump("mine")
	delete(before, "commit_keys")
	delete(after, "commit_keys")
	if !maps.Equal(before, after) {
		t.Errorf("rows changed:\n%v\n%v", before, after)
	}
}

func TestOperationErrorsNameTheField(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	one, take := operation("one", keep("one", "u:a", "world", "1")), &ledgerv1.CaptureRequest{BizNo: "taken"}
	for field, r := range map[string]*batchv1.ExecuteRequest{
		"operations": execute(),
		"operations[0].request.postings[0].amount": execute(operation("", pay("x", "u:a", "world", "-1"))),
		"operations[1].request.bizNo":              execute(one, operation("", pay("", "u:a", "world", "1"))),
		"operations[1].name":                       execute(one, one),
		"operations[0].request": execute(operation("",
			&ledgerv1.GetBalanceRequest{Account: ref("u:a", "COIN")})),
		"operations[0].request.dryRun": execute(operation("", &ledgerv1.TransferRequest{BizNo: "x", DryRun: true,
			Postings: posting("u:a", "world", "COIN", "1")})),
		"operations[1].references[0]": execute(one, operation("", take, "hold_id=two:hold.id")),
		"operations[0].references[0]": execute(operation("self", take, "hold_id=self:hold.id")),
		"operations[2].references[0]": execute(one, operation("t", take, "hold_id=one:hold.id"),
			operation("", take, "biz_no=one:hold.biz_no")),
		"operations[1].references[1]": execute(one, operation("", take, "hold_id=one:hold.id", "amount=one:hold.id")),
		"operations[1].references[0].field: is set": execute(one,
			operation("", &ledgerv1.CaptureRequest{BizNo: "taken", Amount: "1"}, "amount=one:hold.amount")),
		"operations[1].references[1].field: is set": execute(one,
			operation("", take, "hold_id=one:hold.id", "hold_id=one:hold.id")),
		"operations[1].references[0].field: is set already": execute(one,
			operation("", pay("x", "u:a", "world", "1"), "postings[0].amount=one:hold.amount")),
	} {
		a := c.call(connectJSON, "Batch.Execute", r, "Idempotency-Key", "bad")
		if a.Reason(t) != "FIELD_INVALID" || !strings.Contains(a.Message, field) {
			t.Errorf("%s: %s %s", field, a.Code, a.Message)
		}
	}
	for _, reference := range []string{"hold_id=one:hold", "hold_id=one:hold.no", "hold_id=one:hold.id.x",
		"hold_id=one:hold.id[0]", "no=one:hold.id",
		"metadata[0]=one:hold.id", "=one:", "hold_id=one:hold.metadata"} {
		if a := c.call(connectJSON, "Batch.Execute",
			execute(one, operation("", take, reference))); a.Reason(t) != "FIELD_INVALID" {
			t.Errorf("%s: %s %s", reference, a.Code, a.Message)
		}
	}
	unresolved := execute(operation("one", pay("one", "u:a", "world", "1")),
		operation("", pay("two", "u:a", "world", ""),
			"postings[0].amount=one:transfer.entries[2].amount"))
	if a := c.call(connectJSON, "Batch.Execute", unresolved); a.Reason(t) != "REFERENCE_UNRESOLVED" ||
		!slices.Equal(a.Fields(t), []string{"operations[1].request.postings[0].amount"}) {
		t.Errorf("%s %s, fields %q", a.Code, a.Message, a.Fields(t))
	}
	negative := execute(operation("one", pay("one", "u:a", "world", "1")),
		operation("", pay("two", "u:a", "world", ""),
			"postings[0].amount=one:transfer.entries[0].amount"))
	if a := c.call(connectJSON, "Batch.Execute", negative); a.Reason(t) != "FIELD_INVALID" ||
		!strings.Contains(a.Message, "operation 1") {
		t.Errorf("%s %s", a.Code, a.Message)
	}
	if n := s.Count("select count(*) from ledger_transfers where biz_no in ('one', 'two')"); n != 0 {
		t.Errorf("%d transfers were left", n)
	}
}

func TestAThousandOperationsAreOneCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	r := execute()
	for i := range 1000 {
		r.Operations = append(r.Operations, operation("", pay(fmt.Sprint("n", i), "world", "u:a", "0.01")))
	}
	if got, _ := c.executed(r); len(got) != 1000 {
		t.Errorf("%d results", len(got))
	}
	if b := c.balance("u:a"); b != "105.00" {
		t.Errorf("u:a has %s", b)
	}
	r.Operations = append(r.Operations, operation("", pay("more", "world", "u:a", "0.01")))
	if a := c.call(connectJSON, "Batch.Execute", r); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("1,001 operations: %s", a.Code)
	}
}
