package rpc_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	approvalv1 "github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1"
	auditv1 "github.com/ledgerd/ledgerd/gen/ledgerd/audit/v1"
	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

// colleague has a key of another principal of the tenant.
func (c *caller) colleague() *caller {
	c.T.Helper()
	key, err := access.Administer(c.Pool).CreateKey(c.T.Context(), c.tenant(),
		access.NewKey{Principal: "colleague", Rights: access.Rights{Role: access.Admin}})
	if err != nil {
		c.T.Fatal(err)
	}
	return &caller{c.site, key.Secret}
}

// wishes requests the approval of m, and records its id under the placeholder of notice.
func (c *caller) wishes(kind, tag string, m proto.Message, headers ...string) {
	c.T.Helper()
	w := wish(m)
	w.Reason = secretNote
	id := ok(c, "Approval.RequestApproval", w, new(approvalv1.RequestApprovalResponse),
		headers...).GetApproval().GetId()
	c.fences.Store(fmt.Sprint("notice ", notice(kind, tag)), id)
}

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		ann := c.colleague()
		for _, kind := range []string{"approve", "reject", "get"} {
			ann.wishes(kind, x.paid, payment(kind+x.paid, "1"), id...)
		}
	})
	goWell = append(goWell, "Approval.RequestApproval", "Approval.ListApprovals")
	examples["Approval.RequestApproval"] = func(x resources) []proto.Message {
		return all(wish(&ledgerv1.TransferRequest{BizNo: "walk-wish",
			Postings: posting(x.wallet, x.shop, x.asset, "1")}))
	}
	examples["Approval.Approve"] = func(x resources) []proto.Message {
		return all(&approvalv1.ApproveRequest{ApprovalId: notice("approve", x.paid)})
	}
	examples["Approval.Reject"] = func(x resources) []proto.Message {
		return all(&approvalv1.RejectRequest{ApprovalId: notice("reject", x.paid)})
	}
	examples["Approval.GetApproval"] = func(x resources) []proto.Message {
		return all(&approvalv1.GetApprovalRequest{ApprovalId: notice("get", x.paid)})
	}
	examples["Approval.ListApprovals"] = func(resources) []proto.Message {
		return all(&approvalv1.ListApprovalsRequest{}, &approvalv1.ListApprovalsRequest{State: 1})
	}
	preparers["Approval"] = func(c *caller, tag string) {
		c.prepareLedger(tag)
		ann := c.colleague()
		ann.wishes("well", tag, payment(tag, "5.5"))
		ann.wishes("poor", tag, payment(tag, "1000"))
		ann.wishes("done", tag, &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}})
		ok(c, "Approval.Approve", &approvalv1.ApproveRequest{ApprovalId: notice("done", tag)},
			new(approvalv1.ApproveResponse))
	}
	changes["Approval.RequestApproval"] = change{well: func(tag string) proto.Message {
		return wish(payment(tag,
			"5.5"))
	}}
	changes["Approval.Approve"] = change{reason: "INSUFFICIENT_FUNDS",
		well:    func(tag string) proto.Message { return &approvalv1.ApproveRequest{ApprovalId: notice("well", tag)} },
		refused: func(tag string) proto.Message { return &approvalv1.ApproveRequest{ApprovalId: notice("poor", tag)} }}
	changes["Approval.Reject"] = change{reason: "APPROVAL_APPROVED",
		well:    func(tag string) proto.Message { return &approvalv1.RejectRequest{ApprovalId: notice("well", tag)} },
		refused: func(tag string) proto.Message { return &approvalv1.RejectRequest{ApprovalId: notice("done", tag)} }}
}

// office is a tenant with policies, of which ann and bob are administrators.
type office struct {
	*site
	ann, bob *caller
}

// newOffice makes an office with the accounts of prepareLedger("a"), where u:a has 95 and 5 of these are held.
func newOffice(t *testing.T, policies ...access.Policy) *office {
	t.Helper()
	s := newSite(t)
	(&caller{s, s.Key("mine", "boss", access.Admin)}).prepareLedger("a")
	tenant, err := access.Tenant(t.Context(), s.Pool, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policies {
		p.ApprovalRequired = true
		if err := access.Administer(s.Pool).PutPolicy(t.Context(), tenant, p); err != nil {
			t.Fatal(err)
		}
	}
	return &office{s, &caller{s, s.Key("mine", "ann", access.Admin)}, &caller{s, s.Key("mine", "bob", access.Admin)}}
}

func always(operation string) access.Policy { return access.Policy{Operation: operation} }

func above(operation, decimal string) access.Policy {
	n, err := amount.ParseDecimal(decimal)
	if err != nil {
		panic(err)
	}
	return access.Policy{Operation: operation, ApprovalAbove: &n}
}

func wish(m proto.Message) *approvalv1.RequestApprovalRequest {
	packed, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return &approvalv1.RequestApprovalRequest{Request: packed, Reason: "month end"}
}

// requests returns the id of a new approval.
func (c *caller) requests(m proto.Message) int64 {
	c.T.Helper()
	return ok(c, "Approval.RequestApproval", wish(m), new(approvalv1.RequestApprovalResponse)).GetApproval().GetId()
}

func (c *caller) approve(id int64, headers ...string) answer {
	c.T.Helper()
	return c.call(connectProto, "Approval.Approve", &approvalv1.ApproveRequest{ApprovalId: id, Note: "seen"},
		headers...)
}

func (c *caller) approval(id int64) *approvalv1.GetApprovalResponse {
	c.T.Helper()
	return ok(c, "Approval.GetApproval", &approvalv1.GetApprovalRequest{ApprovalId: id},
		new(approvalv1.GetApprovalResponse))
}

// approved returns the response of a request that is approved.
func approved[R proto.Message](t *testing.T, a answer, res R) (R, *approvalv1.ApproveResponse) {
	t.Helper()
	a.wants(t, "the approval", "")
	own := new(approvalv1.ApproveResponse)
	connectProto.Decode(t, a.Raw, own)
	if err := own.GetResponse().UnmarshalTo(res); err != nil {
		t.Fatal(err)
	}
	return res, own
}

func lowest(balance string) *ledgerv1.UpdateAccountRequest {
	return &ledgerv1.UpdateAccountRequest{Account: ref("u:a", "COIN"), MinBalance: &balance}
}

func reverseByName(bizNo, of string) *ledgerv1.ReverseRequest {
	return &ledgerv1.ReverseRequest{BizNo: bizNo, Target: &ledgerv1.ReverseRequest_TransferBizNo{TransferBizNo: of}}
}

func reverseByID(bizNo string, id int64) *ledgerv1.ReverseRequest {
	return &ledgerv1.ReverseRequest{BizNo: bizNo, Target: &ledgerv1.ReverseRequest_TransferId{TransferId: id}}
}

func TestApprovedRequestIsDoneOnceInTheNameOfItsRequester(t *testing.T) {
	t.Parallel()
	o := newOffice(t, always("ledger.update_account"))
	o.ann.call(connectProto, "UpdateAccount", lowest("-10")).wants(t, "without approval", "APPROVAL_REQUIRED")
	id := o.ann.requests(lowest("-10"))
	if a := o.bob.approval(id); a.GetApproval().GetState() != approvalv1.ApprovalState_APPROVAL_STATE_OPEN ||
		a.GetApproval().GetRequestedBy() != "ann" || a.GetResponse() != nil || !a.GetRequest().MessageIs(lowest("")) {
		t.Errorf("open: %v", a)
	}
	if n := o.Count("select count(*) from ledger_accounts where min_balance < 0"); n != 0 {
		t.Error("a request changed a limit")
	}
	first := o.bob.approve(id)
	res, whole := approved(t, first, new(ledgerv1.UpdateAccountResponse))
	if res.GetAccount().GetMinBalance() != "-10.00" || whole.GetExisted() ||
		whole.GetApproval().GetDecidedBy() != "bob" ||
		whole.GetApproval().GetNote() != "seen" {
		t.Errorf("approved: %v", whole)
	}
	events := ok(o.ann, "Audit.ListEvents", &auditv1.ListEventsRequest{Kind: accountSetting, Name: "u:a COIN"},
		new(auditv1.ListEventsResponse)).GetEvents()
	if len(events) != 1 || events[0].GetPrincipal() != "ann" || events[0].GetApprovedBy() != "bob" ||
		events[0].GetRequestId() != fmt.Sprint("approval.", id) ||
		!strings.Contains(o.ann.apiKey, events[0].GetKeyName()) {
		t.Errorf("the audit log has %v", events)
	}
	// A repeat has no effect, though the limit has changed since.
	ok(o.ann, "Approval.Approve", &approvalv1.ApproveRequest{ApprovalId: o.bob.requests(lowest("-3"))},
		new(approvalv1.ApproveResponse))
	again, repeat := approved(t, o.bob.approve(id), new(ledgerv1.UpdateAccountResponse))
	if !repeat.GetExisted() || !proto.Equal(again, res) || !proto.Equal(repeat.GetApproval(), whole.GetApproval()) {
		t.Errorf("again: %v", repeat)
	}
	if a := ok(o.ann, "GetAccount", &ledgerv1.GetAccountRequest{Account: ref("u:a", "COIN")},
		new(ledgerv1.GetAccountResponse)).GetAccount(); a.GetMinBalance() != "-3.00" {
		t.Errorf("the limit is %s", a.GetMinBalance())
	}
	if a := o.ann.approval(id); a.GetApproval().GetState() != approvalv1.ApprovalState_APPROVAL_STATE_APPROVED ||
		!proto.Equal(a.GetResponse(), whole.GetResponse()) {
		t.Errorf("approved: %v", a)
	}
}

// Each call with an amount above the limit needs approval, by every kind of call. Calls at the limit do not.
func TestCallsAboveTheLimitNeedApproval(t *testing.T) {
	t.Parallel()
	o := newOffice(t, above("ledger.transfer", "10"), above("ledger.hold", "10"), above("ledger.update_account", "10"),
		above("ledger.create_accounts", "10.5"), above("ledger.reverse", "10"))
	n := 0
	number := func() string { n++; return fmt.Sprint("n", n) }
	tiny := func() *batchv1.Operation { return operation("tiny", pay(number(), "world", "u:a", "0.01")) }
	batched := func(amount string, together bool) proto.Message {
		return &ledgerv1.TransferBatchRequest{AllOrNothing: together, Items: []*ledgerv1.TransferBatchItem{
			{Transfer: pay(number(), "world", "u:a", "1")}, {Transfer: pay(number(), "world", "u:a", amount)}}}
	}
	moved := func(amount string) string {
		no := number()
		o.bob.approve(o.ann.requests(pay(no, "world", "u:a", amount))).wants(t, "a transfer to reverse", "")
		return no
	}
	idOf := func(bizNo string) int64 {
		return ok(o.ann, "GetTransfer",
			&ledgerv1.GetTransferRequest{Target: &ledgerv1.GetTransferRequest_TransferBizNo{TransferBizNo: bizNo}},
			new(ledgerv1.GetTransferResponse)).GetTransfer().GetId()
	}
	account := func(a *ledgerv1.NewAccount) proto.Message {
		a.Code, a.Asset = number(), "COIN"
		return &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: number(), Asset: "COIN"}, a}}
	}
	update := func(r *ledgerv1.UpdateAccountRequest) proto.Message {
		r.Account = ref("u:a", "COIN")
		return r
	}
	form := func(f ledgerv1.AmountForm, amount string) *ledgerv1.TransferRequest {
		r := pay(number(), "u:a", "world", amount)
		r.Postings[0].Form = f
		return r
	}
	for _, x := range []struct {
		what, call string
		r          proto.Message
		refused    bool
	}{
		{"a transfer at the limit", "Transfer", pay(number(), "world", "u:a", "10.00"), false},
		{"a transfer above", "Transfer", pay(number(), "world", "u:a", "10.01"), true},
		{"a transfer far above", "Transfer", pay(number(), "world", "u:a", "100"), true},
		{"a transfer of up to", "Transfer", form(ledgerv1.AmountForm_AMOUNT_FORM_UP_TO, "10.01"), true},
		{"a transfer of all", "Transfer", form(ledgerv1.AmountForm_AMOUNT_FORM_ALL_AVAILABLE, ""), true},
		{"a hold at the limit", "Hold", keep(number(), "u:a", "world", "10"), false},
		{"a hold above", "Hold", keep(number(), "u:a", "world", "11"), true},
		{"items at the limit, together", "TransferBatch", batched("10", true), false},
		{"an item above, together", "TransferBatch", batched("10.5", true), true},
		{"an operation at the limit", "Batch.Execute",
			execute(tiny(), operation("", pay(number(), "world", "u:a", "10"))), false},
		{"an operation above", "Batch.Execute", execute(tiny(), operation("", pay(number(), "world", "u:a", "10.01"))),
			true},
		{"an operation above by reference", "Batch.Execute",
			execute(tiny(), operation("", pay(number(), "world", "u:a", ""),
				"postings[0].amount=tiny:transfer.entries[1].balance_after")), true},
		{"a limit at the limit", "UpdateAccount", lowest("-10"), false},
		{"a limit above", "UpdateAccount", lowest("-10.01"), true},
		{"no lower limit", "UpdateAccount", update(&ledgerv1.UpdateAccountRequest{Unbounded: true}), true},
		{"no upper limit", "UpdateAccount", update(&ledgerv1.UpdateAccountRequest{ClearMaxBalance: true}), true},
		{"an upper limit above", "UpdateAccount",
			update(&ledgerv1.UpdateAccountRequest{MaxBalance: proto.String("9999")}), true},
		{"metadata", "UpdateAccount", update(&ledgerv1.UpdateAccountRequest{Metadata: manyNames}), false},
		{"a new account", "CreateAccounts", account(&ledgerv1.NewAccount{MinBalance: proto.String("-10.5")}), false},
		{"a new account above", "CreateAccounts", account(&ledgerv1.NewAccount{MinBalance: proto.String("-11")}), true},
		{"a new account without limit", "CreateAccounts", account(&ledgerv1.NewAccount{Unbounded: true}), true},
		{"a reversal at the limit", "Reverse", reverseByName(number(), moved("10")), false},
		{"a reversal above", "Reverse", reverseByName(number(), moved("10.01")), true},
		{"a reversal by id at the limit", "Reverse", reverseByID(number(), idOf(moved("9"))), false},
		{"a reversal by id above", "Reverse", reverseByID(number(), idOf(moved("12"))), true},
		{"a reversal above in an Execute", "Batch.Execute",
			execute(tiny(), operation("", reverseByName(number(), moved("11")))), true},
		{"a reversal at the limit in an Execute", "Batch.Execute", execute(tiny(), operation("",
			&ledgerv1.ReverseRequest{BizNo: number()}, "transfer_id=tiny:transfer.id")), false},
	} {
		reason := ""
		if x.refused {
			reason = "APPROVAL_REQUIRED"
		}
		before := o.dump("mine")
		a := o.ann.call(connectProto, x.call, x.r)
		if a.wants(t, x.what, reason); x.refused {
			wantSame(t, x.what, before, o.dump("mine"))
			if a.State("policy") == "" || (a.State("operation") != "") != (x.call == "Batch.Execute") {
				t.Errorf("%s: %v", x.what, a.Message)
			}
		}
	}
}

// An Execute whose GrabMany needs an approval can be requested.
func TestAnExecuteWithManyGrabsCanBeApproved(t *testing.T) {
	t.Parallel()
	o := newOffice(t, always("sale.grab"))
	o.ann.executed(execute(operation("", putItem("tv", "TV")), operation("", restock("tv", "first", 10))))
	o.ann.putSale(saleOf("tv", "tv", "COIN"))
	many := execute(operation("", &salev1.GrabManyRequest{Sale: "tv", Grabs: []*salev1.Grab{{Buyer: "x"}}}))
	if a := o.ann.call(connectJSON, "Batch.Execute", many); a.Reason(t) != "APPROVAL_REQUIRED" {
		t.Errorf("%s", a.Raw)
	}
	if a := o.ann.call(connectJSON, "Approval.RequestApproval", wish(many)); a.Code != "" {
		t.Errorf("%s", a.Raw)
	}
}

// Each item of a batch is refused by itself.
func TestItemsOfBatchesNeedApprovalEach(t *testing.T) {
	t.Parallel()
	o := newOffice(t, above("ledger.transfer", "10"), always("notify.send"), always("sale.grab"))
	r := &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{{Transfer: pay("one", "world", "u:a",
		"11")},
		{Transfer: pay("two", "world", "u:a", "9")}}}
	res := ok(o.ann, "TransferBatch", r, new(ledgerv1.TransferBatchResponse)).GetResults()
	if res[0].GetError().GetReason() != "APPROVAL_REQUIRED" || res[1].GetTransfer().GetBizNo() != "two" {
		t.Errorf("%v", res)
	}
	sends := &notifyv1.SendBatchRequest{Items: []*notifyv1.SendRequest{sms("a")}}
	if res := ok(o.ann, "Notify.SendBatch", sends,
		new(notifyv1.SendBatchResponse)).GetResults(); res[0].GetError().GetReason() != "APPROVAL_REQUIRED" {
		t.Errorf("%v", res)
	}
	sends.AllOrNothing = true
	o.ann.call(connectProto, "Notify.SendBatch", sends).wants(t, "all sends", "APPROVAL_REQUIRED")
	o.ann.call(connectProto, "Notify.Send", sms("a")).wants(t, "a send", "APPROVAL_REQUIRED")
	o.ann.stocked("a")
	ok(o.ann, "Sale.PutSale", putSale(saleOf("s", "a", "COIN")), new(salev1.PutSaleResponse))
	grabs := &salev1.GrabManyRequest{Sale: "s", Grabs: []*salev1.Grab{{Buyer: "jo"}}}
	if res := ok(o.ann, "Sale.GrabMany", grabs,
		new(salev1.GrabManyResponse)).GetResults(); res[0].GetError().GetReason() != "APPROVAL_REQUIRED" {
		t.Errorf("%v", res)
	}
	o.ann.call(connectProto, "Sale.Grab", grab("s", "jo")).wants(t, "a grab", "APPROVAL_REQUIRED")
	o.bob.approve(o.ann.requests(grab("s", "jo"))).wants(t, "an approved grab", "")
}

// A stock strategy gives a call a transaction of its own. Such a call still needs approval.
func TestStrategiesNeedApproval(t *testing.T) {
	t.Parallel()
	o := newOffice(t, always("stock.reserve"))
	o.ann.executed(execute(operation("", putItem("a", "")), operation("", restock("a", "first", 100))))
	r := &stockv1.ReserveRequest{Item: "a", ReservationNo: "r", Quantity: 1}
	for _, s := range []stockv1.Strategy{stockv1.Strategy_STRATEGY_UNSPECIFIED, stockv1.Strategy_STRATEGY_ATOMIC,
		stockv1.Strategy_STRATEGY_OPTIMISTIC, stockv1.Strategy_STRATEGY_PESSIMISTIC,
		stockv1.Strategy_STRATEGY_ADVISORY} {
		r.Strategy = s
		o.ann.call(connectProto, "Stock.Reserve", r).wants(t, s.String(), "APPROVAL_REQUIRED")
	}
	r.Strategy = stockv1.Strategy_STRATEGY_UNSPECIFIED
	o.bob.approve(o.ann.requests(r)).wants(t, "approved", "")
	if n := o.Count("select count(*) from stock_reservations"); n != 1 {
		t.Errorf("%d reservations", n)
	}
}

func TestDryRunsNeedNoApproval(t *testing.T) {
	t.Parallel()
	o := newOffice(t, always("ledger.transfer"), above("ledger.reverse", "1"), always("batch.execute"))
	one, two := pay("one", "world", "u:a", "50"), reverseByName("two", "base-a")
	one.DryRun, two.DryRun = true, true
	o.ann.call(connectProto, "Transfer", one).wants(t, "a transfer", "")
	o.ann.call(connectProto, "Reverse", two).wants(t, "a reversal", "")
	all := execute(operation("", pay("one", "world", "u:a", "50")), operation("", reverseByName("two", "base-a")))
	o.ann.call(connectProto, "Batch.Execute", all).wants(t, "an Execute", "APPROVAL_REQUIRED")
	all.DryRun = true
	o.ann.call(connectProto, "Batch.Execute", all).wants(t, "an Execute that is a dry run", "")
}

// An Execute is requested and approved as a whole.
func TestExecuteIsApprovedAsAWhole(t *testing.T) {
	t.Parallel()
	o := newOffice(t, always("ledger.transfer"), above("ledger.reverse", "1"))
	all := execute(operation("pay", pay("one", "world", "u:a", "50")), operation("", reverseByName("two", "base-a")),
		operation("", &ledgerv1.ReverseRequest{BizNo: "three"}, "transfer_id=pay:transfer.id"))
	o.ann.call(connectProto, "Batch.Execute", all).wants(t, "an Execute", "APPROVAL_REQUIRED")
	res, _ := approved(t, o.bob.approve(o.ann.requests(all)), new(batchv1.ExecuteResponse))
	if len(res.GetResults()) != 3 || o.ann.balance("u:a") != "45.00" {
		t.Errorf("%v, and u:a has %s", res, o.ann.balance("u:a"))
	}
	if n := o.Count("select count(*) from ledger_transfers where biz_no in ('one', 'two', 'three') " +
		"and principal = 'ann'"); n != 3 {
		t.Errorf("%d transfers of ann", n)
	}
}

// A refused request changes nothing and can be approved later.
func TestRefusedRequestRemainsOpen(t *testing.T) {
	t.Parallel()
	o := newOffice(t, always("ledger.reverse"))
	lone, both := o.ann.requests(reverseByName("undo", "fund-a")),
		o.ann.requests(execute(operation("", pay("more", "world", "u:a", "20")),
			operation("", reverseByName("undo-2", "base-a"))))
	account := ref("u:a", "COIN")
	ok(o.ann, "FreezeAccount", &ledgerv1.FreezeAccountRequest{Account: account}, new(ledgerv1.FreezeAccountResponse))
	before := o.dump("mine")
	o.bob.approve(lone).wants(t, "a frozen account", "ACCOUNT_FROZEN")
	a := o.bob.approve(both)
	a.wants(t, "a frozen account in an Execute", "ACCOUNT_FROZEN")
	a.wantsState(t, map[string]string{"operation": "1"})
	wantSame(t, "refusals", before, o.dump("mine"))
	ok(o.ann, "UnfreezeAccount", &ledgerv1.UnfreezeAccountRequest{Account: account},
		new(ledgerv1.UnfreezeAccountResponse))
	o.bob.approve(lone).wants(t, "later", "")
	o.bob.approve(both).wants(t, "the Execute, later", "")
	if b := o.ann.balance("u:a"); b != "15.00" {
		t.Errorf("u:a has %s", b)
	}
}

func TestRejectedAndExpiredRequestsAreNotDone(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	reject := func(c *caller, id int64) answer {
		return c.call(connectProto, "Approval.Reject", &approvalv1.RejectRequest{ApprovalId: id, Note: "no"})
	}
	rejected, withdrawn, expired := o.ann.requests(lowest("-1")), o.ann.requests(lowest("-2")),
		o.ann.requests(lowest("-3"))
	first := reject(o.bob, rejected)
	first.wants(t, "rejected", "")
	again := new(approvalv1.RejectResponse)
	connectProto.Decode(t, reject(o.ann, rejected).Raw, again)
	if a := again.GetApproval(); !again.GetExisted() || a.GetDecidedBy() != "bob" || a.GetNote() != "no" {
		t.Errorf("rejected again: %v", again)
	}
	reject(o.ann, withdrawn).wants(t, "withdrawn", "")
	// The clock of the database decides.
	if _, err := o.Pool.Exec(t.Context(), `alter table approval_requests disable trigger user;
		update approval_requests set expires_at = created_at + interval '1 us' where approval_id = `+
		fmt.Sprint(expired)); err != nil {
		t.Fatal(err)
	}
	o.ann.approve(rejected).wants(t, "the requester approves after a rejection", "APPROVAL_REJECTED")
	a := o.bob.approve(rejected)
	a.wants(t, "rejected", "APPROVAL_REJECTED")
	a.wantsState(t, map[string]string{"state": "rejected", "decided_by": "bob"})
	a = o.bob.approve(withdrawn)
	a.wants(t, "withdrawn", "APPROVAL_REJECTED")
	a.wantsState(t, map[string]string{"state": "rejected", "decided_by": "ann"})
	a = o.bob.approve(expired)
	a.wants(t, "expired", "APPROVAL_EXPIRED")
	a.wantsState(t, map[string]string{"state": "expired"})
	reject(o.bob, expired).wants(t, "expired, rejected", "APPROVAL_EXPIRED")
	done := o.ann.requests(lowest("-4"))
	o.bob.approve(done).wants(t, "done", "")
	reject(o.ann, done).wants(t, "done, withdrawn", "APPROVAL_APPROVED")
	o.bob.approve(1).wants(t, "unknown", "APPROVAL_NOT_FOUND")
	reject(o.bob, 1).wants(t, "unknown, rejected", "APPROVAL_NOT_FOUND")

	for state, want := range map[approvalv1.ApprovalState][]int64{0: {done, expired, withdrawn, rejected}, 1: nil,
		2: {done},
		3: {withdrawn, rejected}, 4: {expired}} {
		var got []int64
		for r := (&approvalv1.ListApprovalsRequest{State: state, PageSize: 1}); ; {
			res := ok(o.bob, "Approval.ListApprovals", r, new(approvalv1.ListApprovalsResponse))
			for _, x := range res.GetApprovals() {
				got = append(got, x.GetId())
			}
			if r.PageToken = res.GetNextPageToken(); r.PageToken == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", state, got, want)
		}
	}
	if n := o.Count("select count(*) from audit.approvals " +
		"where state in ('rejected', 'withdrawn', 'expired', 'approved') and details is not null"); n != 4 {
		t.Errorf("auditors see %d", n)
	}
}

// A repeat under a request key that was used before the policy existed is answered: the caller may have lost the
// answer.
func TestRequestKeysAreAnsweredAfterAPolicyCame(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	r, key := pay("one", "world", "u:a", "50"), []string{"Idempotency-Key", "k"}
	o.ann.call(connectProto, "Transfer", r, key...).wants(t, "before", "")
	if err := access.Administer(o.Pool).PutPolicy(t.Context(), o.ann.tenant(),
		access.Policy{Operation: "ledger.transfer",
			ApprovalRequired: true}); err != nil {
		t.Fatal(err)
	}
	ann := &caller{o.site, o.Key("mine", "ann", access.Admin)}
	if a := ann.call(connectProto, "Transfer", r, key...); a.Code != "" || !a.Replayed() {
		t.Errorf("a repeat: %s %s", a.Code, a.Message)
	}
	ann.call(connectProto, "Transfer", r).wants(t, "without the key", "APPROVAL_REQUIRED")
	key[1] = "other"
	ann.call(connectProto, "Transfer", pay("two", "world", "u:a", "5"), key...).wants(t, "another", "APPROVAL_REQUIRED")
	// The refusal is not recorded: the key may be used for the approval, and the biz_no makes it the same transfer.
	res, _ := approved(t, o.bob.approve(ann.requests(r), key...), new(ledgerv1.TransferResponse))
	if !res.GetExisted() || ann.balance("u:a") != "145.00" {
		t.Errorf("%v, u:a has %s", res, ann.balance("u:a"))
	}
}

func TestBadRequestsForApprovalNameTheField(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	dry := pay("x", "world", "u:a", "1")
	dry.DryRun = true
	dryAll := execute(operation("", pay("x", "world", "u:a", "1")))
	dryAll.DryRun = true
	unknown := wish(dry)
	unknown.Request.TypeUrl = "type.googleapis.com/ledgerd.None"
	short, long, dumb := wish(lowest("1")), wish(lowest("1")), wish(lowest("1"))
	short.Life, long.Life, dumb.Reason = durationpb.New(time.Second), durationpb.New(31*24*time.Hour), ""
	blank, odd := wish(lowest("1")), wish(lowest("1"))
	blank.Reason = " "
	odd.Request.TypeUrl = "\u202e/ledgerd.ledger.v1.UpdateAccountRequest"
	oddInside := operation("", lowest("1"))
	oddInside.Request.TypeUrl = "x/ledgerd.ledger.v1.UpdateAccountRequest"
	noJSON := sms("a")
	noJSON.Says = &notifyv1.SendRequest_Template{Template: &notifyv1.TemplateUse{Name: "paid",
		Variables: &structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewNumberValue(math.NaN())}}}}
	longType := wish(lowest("1"))
	longType.Request.TypeUrl = strings.Repeat("x", 1<<20) + "/ledgerd.ledger.v1.UpdateAccountRequest"
	huge := execute()
	for range 900 {
		huge.Operations = append(huge.Operations,
			operation("", &ledgerv1.TransferRequest{BizNo: "x", Type: strings.Repeat("x", 64),
				Metadata: map[string]string{"a": strings.Repeat("b", 1200)},
				Postings: posting("world", "u:a", "COIN", "1")}))
	}
	for what, x := range map[string]struct {
		r     *approvalv1.RequestApprovalRequest
		field string
	}{
		"a read":          {wish(&ledgerv1.ListAssetsRequest{}), "request"},
		"a batch":         {wish(batch("a", "1", true)), "request"},
		"a token":         {wish(spendToken("st_a", "")), "request"},
		"a lock":          {wish(&lockv1.AcquireRequest{Name: "l"}), "request"},
		"an approval":     {wish(&approvalv1.ApproveRequest{ApprovalId: 1}), "request"},
		"an unknown type": {unknown, "request"},
		"no type":         {&approvalv1.RequestApprovalRequest{Request: &anypb.Any{}, Reason: "x"}, "request"},
		"1 MiB":           {wish(huge), "request"},
		"a dry run":       {wish(dry), "request.dry_run"},
		"a dry Execute":   {wish(dryAll), "request.dry_run"},
		"a strategy": {wish(&stockv1.ReserveRequest{Item: "i", ReservationNo: "r", Quantity: 1,
			Strategy: stockv1.Strategy_STRATEGY_ATOMIC}), "request.strategy"},
		"a token in Execute": {wish(execute(operation("", lowest("1")), operation("", spendToken("st_a", "")))),
			"request.operations[1].request"},
		"an invalid amount": {wish(pay("x", "world", "u:a", "one")), "request.postings[0].amount"},
		"an invalid biz_no": {wish(pay("", "world", "u:a", "1")), "request.biz_no"},
		"an amount, deep": {wish(execute(operation("", pay("x", "world", "u:a", "-1")))),
			"request.operations[0].request.postings[0].amount"},
		"life too short":   {short, "life"},
		"life too long":    {long, "life"},
		"without a reason": {dumb, "reason"}, "a blank reason": {blank, "reason"},
		"an odd type":        {odd, "request"},
		"an odd type inside": {wish(execute(oddInside)), "request.operations[0].request"},
		"not JSON":           {wish(noJSON), "request"},
	} {
		a := o.ann.call(connectProto, "Approval.RequestApproval", x.r)
		reason := "FIELD_INVALID"
		if what == "a strategy" {
			reason = "STRATEGY_STANDS_ALONE"
		}
		if a.wants(t, what, reason); !slices.Equal(a.Fields(t), []string{x.field}) {
			t.Errorf("%s: fields %v, %s", what, a.Fields(t), a.Message)
		}
	}
	if n := o.Count("select count(*) from approval_requests"); n != 0 {
		t.Errorf("%d requests are recorded", n)
	}
}

// Faults of the request that is approved name its fields.
func TestFaultsOfTheRequestNameItsFields(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.bob.approve(o.ann.requests(pay("fund-a", "world", "u:a", "1")))
	a.wants(t, "other content", "BIZ_NO_EXISTS_DIFFERENT")
	if f := a.Fields(t); len(f) == 0 || !strings.HasPrefix(f[0], "request.") {
		t.Errorf("fields %v", f)
	}
	a = o.bob.approve(o.ann.requests(execute(operation("", pay("fund-a", "world", "u:a", "1")))))
	if f := a.Fields(t); len(f) == 0 || !strings.HasPrefix(f[0], "request.operations[0].request.") {
		t.Errorf("fields %v", f)
	}
}

// A request of an order may hold personal data: auditors see the requester and the operation, and no more.
func TestAuditorsDoNotReadPersonalRequests(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	order := &orderv1.CreateOrderRequest{OrderNo: "o", Subject: "jane", Asset: "COIN", Amount: "1"}
	o.bob.approve(o.ann.requests(order)).wants(t, "an order", "")
	o.bob.approve(o.ann.requests(execute(operation("", order)))).wants(t, "an order in an Execute", "")
	if n := o.Count("select count(*) from audit.approvals a where state = 'approved' " +
		"and a::text not like '%jane%'"); n != 2 {
		t.Errorf("auditors see %d", n)
	}
	auditor := pgtest.Pool(t, o.DB.SuperDSN)
	for _, column := range []string{"request", "response"} {
		if _,
			err := auditor.Exec(t.Context(),
			"set role ledgerd_audit; select "+column+" from approval_requests"); err == nil {
			t.Errorf("auditors read %s", column)
		}
	}
}

// Messages of brokers need approval as calls do. A message with a single request does not count as an Execute.
func TestMessagesNeedApproval(t *testing.T) {
	t.Parallel()
	o := newOffice(t, above("ledger.transfer", "10"), always("batch.execute"))
	m := &rpc.Messages{Mutations: &rpc.Mutations{Engine: o.engine(), KeyLife: time.Hour}, Gate: &rpc.Gate{},
		Policies: access.NewTenantPolicies(pgtest.Pool(t, o.DB.AllDSN)).RequiringApproval}
	for amount, reason := range map[string]*fault.Reason{"10": nil, "11": access.ApprovalRequired,
		"1": access.ApprovalRequired} {
		var r proto.Message = pay("by-message-"+amount, "world", "u:a", amount)
		request := string(r.ProtoReflect().Descriptor().FullName())
		if amount == "1" {
			r, request = execute(operation("", r)), ""
		}
		in := &rpc.Incoming{Identity: access.Identity{Tenant: o.ann.tenant(), Principal: "orders", Role: access.Write},
			Request: request, Key: inbox.Key{Group: "g", ID: amount},
			Delivery: inbox.Delivery{Topic: "t", Content: connectJSON.Encode(t, r), ContentLife: time.Hour,
				MaxAttempts: 3, Backoff: time.Second, MaxBackoff: time.Minute}}
		if err := m.Run(t.Context(), in); (err != nil) != (reason != nil) || reason != nil && !fault.Is(err, reason) {
			t.Errorf("%s: %v", amount, err)
		}
	}
}
