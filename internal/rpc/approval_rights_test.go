package rpc_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1"
	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// A principal never approves its own request, whatever key it uses, and no other tenant does.
func TestRequesterCannotApprove(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.ann.requests(lowest("-1"))
	other := &caller{o.site, o.Key("mine", "ann", access.Admin)}
	for _, c := range []*caller{o.ann, other} {
		a := c.approve(id)
		a.wants(t, "the requester approves", "APPROVAL_BY_REQUESTER")
		a.wantsState(t, map[string]string{"requested_by": "ann"})
	}
	stranger := &caller{o.site, o.Key("other", "bob", access.Admin)}
	stranger.approve(id).wants(t, "another tenant approves", "APPROVAL_NOT_FOUND")
	stranger.call(connectProto, "Approval.Reject", &approvalv1.RejectRequest{ApprovalId: id}).wants(t,
		"another tenant rejects", "APPROVAL_NOT_FOUND")
	stranger.call(connectProto, "Approval.GetApproval", &approvalv1.GetApprovalRequest{ApprovalId: id}).wants(t,
		"another tenant reads", "APPROVAL_NOT_FOUND")
	o.bob.approve(id).wants(t, "bob approves", "")
	o.ann.approve(id).wants(t, "the requester repeats", "APPROVAL_APPROVED")
	if _, err := o.Pool.Exec(t.Context(), `insert into approval_requests (tenant_id, approval_id, state, operation,
			request, principal, request_id, created_at, expires_at, decided_by, decided_request_id, decided_at,
			response)
		select tenant_id, 1, 'approved', operation, request, principal, request_id, created_at, expires_at, principal,
		request_id, decided_at, response
		from approval_requests`); err == nil || !strings.Contains(err.Error(), "approval_requests_decided_by_check") {
		t.Errorf("the database takes an approval by the requester: %v", err)
	}
}

// The requester needs the rights of the request when it is requested, the approver when it is approved.
func TestRightsOfRequesterAndApprover(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	s := o.site
	writer, reader := &caller{s, s.Key("mine", "cy", access.Write)}, &caller{s, s.Key("mine", "dee", access.Read)}
	scoped := s.with("mine", "eve", access.Rights{Role: access.Admin}, "approval.*",
		"ledger.transfer(from=world, to=u:*)")
	narrow := s.with("mine", "fay", access.Rights{Role: access.Admin}, "ledger.*")
	freeze := &ledgerv1.FreezeAccountRequest{Account: ref("u:a", "COIN")}
	inside, outside := pay("in", "world", "u:a", "1"), pay("out", "world", "empty:a", "1")
	both := execute(operation("", inside), operation("", outside))
	filled := execute(operation("one", pay("x", "world", "u:a", "1")),
		operation("", pay("y", "world", "empty:a", ""), "postings[0].amount=one:transfer.entries[1].amount"))

	frozen := o.ann.requests(execute(operation("", freeze)))
	o.bob.approve(frozen).wants(t, "a freeze", "")
	for what, x := range map[string]struct {
		c *caller
		r proto.Message
	}{
		"a limit by a writer": {writer, lowest("-1")}, "a freeze by a writer": {writer, freeze},
		"a freeze in an Execute by a writer": {writer, execute(operation("", freeze))},
		"any by a reader":                    {reader, inside},
		"outside of the scopes":              {scoped, outside}, "partly outside": {scoped, both},
		"without approval.request_approval": {narrow, inside},
	} {
		x.c.call(connectProto, "Approval.RequestApproval", wish(x.r)).wants(t, what, "PERMISSION_DENIED")
	}
	for what, x := range map[string]struct {
		c *caller
		r proto.Message
	}{
		"a limit by a writer": {writer, lowest("-1")}, "a freeze by a writer": {writer, freeze},
		"a freeze in an Execute by a writer": {writer, execute(operation("", freeze))},
		"any by a reader":                    {reader, inside},
		"outside of the scopes":              {scoped, outside}, "partly outside": {scoped, both},
		"without approval.approve": {narrow, inside},
		"filled in outside":        {scoped, filled},
	} {
		id := o.ann.requests(x.r)
		x.c.approve(id).wants(t, what, "PERMISSION_DENIED")
		x.c.call(connectProto, "Approval.Reject", &approvalv1.RejectRequest{ApprovalId: id}).wants(t, what+", rejected",
			"PERMISSION_DENIED")
		if state := o.ann.approval(id).GetApproval().GetState(); state != approvalv1.ApprovalState_APPROVAL_STATE_OPEN {
			t.Errorf("%s: %v", what, state)
		}
		if what == "outside of the scopes" { // also not once it is approved
			o.bob.approve(id).wants(t, "by bob", "")
			x.c.approve(id).wants(t, what+", again", "PERMISSION_DENIED")
		}
	}
	for c, sees := range map[*caller]bool{o.ann: true, o.bob: true, writer: false, reader: false, scoped: false} {
		a := ok(c, "Approval.GetApproval", &approvalv1.GetApprovalRequest{ApprovalId: frozen},
			new(approvalv1.GetApprovalResponse))
		if (a.GetRequest() != nil) != sees || (a.GetResponse() != nil) != sees ||
			a.GetApproval().GetDecidedBy() != "bob" {
			t.Errorf("sees %v: %v", sees, a)
		}
	}
	scoped.approve(o.ann.requests(inside)).wants(t, "inside of the scopes", "")
	writer.approve(scoped.requests(pay("in-2", "world", "u:a", "1"))).wants(t, "requested inside of the scopes", "")
	if list := ok(reader, "Approval.ListApprovals", &approvalv1.ListApprovalsRequest{},
		new(approvalv1.ListApprovalsResponse)); len(list.GetApprovals()) == 0 {
		t.Error("a reader lists nothing")
	}
}

// Of many callers that approve and reject at once, on two servers, one decides.
func TestOneOfManyDecides(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	second := o.bob.second()
	seen := map[bool]int{} // rounds by whether the request was approved
	for round := 0; round < 5 || len(seen) < 2; round++ {
		if round == 200 {
			t.Fatalf("of %d rounds, approvals won %d", round, seen[true])
		}
		id := o.ann.requests(pay(fmt.Sprint("race-", round), "world", "u:a", "1"))
		reasons := make([]string, 16)
		var all sync.WaitGroup
		for i := range reasons {
			c := []*caller{o.bob, second}[i%2]
			all.Go(func() {
				decide := func() answer { return c.approve(id) }
				if i%4 > 1 {
					decide = func() answer {
						return c.call(connectProto, "Approval.Reject", &approvalv1.RejectRequest{ApprovalId: id})
					}
				}
				if a := decide(); a.Code != "" {
					reasons[i] = a.Reason(t)
				}
			})
		}
		all.Wait()
		approved := o.ann.approval(id).GetApproval().GetState() == approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
		seen[approved]++
		for i, got := range reasons {
			want := ""
			switch rejects := i%4 > 1; {
			case rejects && approved:
				want = "APPROVAL_APPROVED"
			case !rejects && !approved:
				want = "APPROVAL_REJECTED"
			}
			if got != want {
				t.Errorf("round %d, approved %v: caller %d got %q, want %q", round, approved, i, got, want)
			}
		}
		n := o.Count("select count(*) from ledger_transfers where biz_no = $1", fmt.Sprint("race-", round))
		if (n == 1) != approved || n > 1 {
			t.Errorf("round %d, approved %v: %d transfers", round, approved, n)
		}
	}
}

// Ids can be guessed: an approval may be created between the lookup of its request and the commit. Even then a caller
// without rights to the request cannot decide.
func TestAnApprovalThatIsNotThereYetIsNotFound(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	writer := &caller{o.site, o.Key("mine", "cy", access.Write)}
	freeze := &ledgerv1.FreezeAccountRequest{Account: ref("u:a", "COIN")}
	last := o.ann.requests(freeze)
	for n := range 300 {
		next := last&^(1<<14-1) + 1<<14 + last&(1<<14-1)
		answers := make([]answer, 6)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				for range i * n % 7 { // vary the time of the call
					if res, err := http.Get(o.Base + "/healthz"); err == nil {
						res.Body.Close()
					}
				}
				if i == 0 {
					answers[i] = writer.approve(next)
					return
				}
				answers[i] = writer.call(connectProto, "Approval.Reject", &approvalv1.RejectRequest{ApprovalId: next})
			})
		}
		last = o.ann.requests(freeze)
		all.Wait()
		for _, a := range answers {
			if r := a.Reason(t); r != "PERMISSION_DENIED" && r != "APPROVAL_NOT_FOUND" {
				t.Fatalf("round %d: %q", n, r)
			}
		}
		if a := o.ann.approval(last).GetApproval(); a.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_OPEN {
			t.Fatalf("round %d: %v", n, a)
		}
	}
}

// Requester and approver need rights to every value that a reference may fill in; other principals do not see the
// request.
func TestReferencesNeedRightsToEveryValue(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	s := o.site
	eve := s.with("mine", "eve", access.Rights{Role: access.Write}, "approval.*", "batch.execute",
		"ledger.transfer(from=u:*)",
		"stock.confirm(reservation_no=mine-*)", "ledger.capture(hold_biz_no=mine-*)",
		"ledger.reverse(transfer_biz_no=mine-*)")
	writer := &caller{s, s.Key("mine", "cy", access.Write)}
	first := func() *batchv1.Operation { return operation("one", pay("x", "u:a", "world", "1")) }
	filled := func(m proto.Message, field, result string) proto.Message {
		return execute(first(), operation("", m, field+"=one:"+result))
	}
	for what, x := range map[string]struct {
		c *caller
		m proto.Message
	}{
		"another payer": {eve, filled(pay("y", "world", "u:a", ""), "postings[0].amount",
			"transfer.entries[1].amount")},
		"another reservation": {eve, filled(&stockv1.ConfirmRequest{Item: "i"}, "reservation_no",
			"transfer.biz_no")},
		"another hold":     {eve, filled(&ledgerv1.CaptureRequest{BizNo: "c"}, "hold_id", "transfer.hold_id")},
		"another transfer": {eve, filled(&ledgerv1.ReverseRequest{BizNo: "c"}, "transfer_id", "transfer.id")},
		"a new limit": {writer, filled(&ledgerv1.UpdateAccountRequest{Account: ref("u:a", "COIN")}, "min_balance",
			"transfer.entries[0].amount")},
		"a limit of a new account": {writer, filled(&ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
			{Code: "new", Asset: "COIN"}}}, "accounts[0].min_balance", "transfer.entries[0].amount")},
	} {
		refused := x.c.call(connectProto, "Approval.RequestApproval", wish(x.m))
		refused.wants(t, what+", requested", "PERMISSION_DENIED")
		if what == "another reservation" &&
			(!slices.Equal(refused.Fields(t), []string{"request.operations[1].request.reservation_no"}) ||
				!strings.Contains(refused.Message, "a reference fills it in")) {
			t.Errorf("%s: %s %v", what, refused.Message, refused.Fields(t))
		}
		id := o.ann.requests(x.m)
		for call, m := range map[string]proto.Message{"Approve": &approvalv1.ApproveRequest{ApprovalId: id},
			"Reject": &approvalv1.RejectRequest{ApprovalId: id}} {
			a := x.c.call(connectProto, "Approval."+call, m)
			if a.wants(t, what+", "+call, "PERMISSION_DENIED"); len(a.Fields(t)) > 0 ||
				strings.Contains(a.Message, "u:a") {
				t.Errorf("%s, %s: %s %v", what, call, a.Message, a.Fields(t))
			}
		}
		if a := x.c.approval(id); a.GetRequest() != nil {
			t.Errorf("%s: the request is shown: %v", what, a)
		}
	}
	for what, m := range map[string]proto.Message{
		"references[0].field: hold_biz_no is set": filled(&ledgerv1.CaptureRequest{
			Hold: &ledgerv1.CaptureRequest_HoldBizNo{HoldBizNo: "mine-1"}, BizNo: "c"}, "hold_id", "transfer.id"),
		"references[0].field: transfer_biz_no is set": filled(&ledgerv1.ReverseRequest{
			Target: &ledgerv1.ReverseRequest_TransferBizNo{TransferBizNo: "mine-1"}, BizNo: "c"}, "transfer_id",
			"transfer.id"),
		"references[0].field: content is set": filled(&notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_EMAIL,
			Recipient: "a@b.example", BizNo: "m", Says: &notifyv1.SendRequest_Content{
				Content: &notifyv1.Content{Text: "t"}}}, "template.variables.x", "transfer.biz_no"),
	} {
		a := o.ann.call(connectProto, "Approval.RequestApproval", wish(m))
		if a.wants(t, what, "FIELD_INVALID"); !strings.Contains(a.Message, what) {
			t.Errorf("want %q: %s", what, a.Message)
		}
	}
	inside := eve.requests(filled(pay("z", "u:a", "world", ""), "postings[0].amount", "transfer.entries[1].amount"))
	o.bob.approve(inside).wants(t, "inside of the scopes", "")
}

// The effects of an approval have a request id that no caller can send.
func TestEffectsOfAnApprovalAreItsOwn(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.ann.requests(pay("approved", "world", "u:a", "1"))
	own := fmt.Sprint("approval.", id)
	o.bob.approve(id, "X-Request-ID", "same").wants(t, "the approval", "")
	for biz, header := range map[string]string{"other-1": "same", "other-2": own} {
		o.ann.call(connectProto, "Transfer", pay(biz, "world", "u:a", "1"), "X-Request-ID", header).wants(t, biz, "")
	}
	if n := o.Count(`select count(*) from ledger_transfers t
		join approval_requests a on a.decided_request_id = t.request_id
		where t.biz_no in ('approved', 'other-1', 'other-2')`); n != 1 {
		t.Errorf("%d transfers seem to be approved", n)
	}
	if n := o.Count("select count(*) from ledger_transfers where biz_no = 'approved' and request_id = $1",
		own); n != 1 {
		t.Error("the transfer has another request id")
	}
}
