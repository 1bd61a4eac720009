package rpc_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// with creates an API key with rights, and returns its caller.
func (s *site) with(tenant, principal string, r access.Rights, scopes ...string) *caller {
	s.T.Helper()
	id, err := access.EnsureTenant(s.T.Context(), s.Pool, tenant)
	if err != nil {
		s.T.Fatal(err)
	}
	if r.Scopes, err = access.ParseScopes(scopes); err != nil {
		s.T.Fatal(err)
	}
	key, err := access.Administer(s.Pool).CreateKey(s.T.Context(), id, access.NewKey{Principal: principal, Rights: r})
	if err != nil {
		s.T.Fatal(err)
	}
	return &caller{s, key.Secret}
}

var hello = sms("hello").Says

// Fields are the paths of the fields that an error names.
func (a answer) Fields(t *testing.T) (paths []string) {
	t.Helper()
	bad, _ := servertest.Detail(a.Answer, new(errdetails.BadRequest))
	for _, v := range bad.GetFieldViolations() {
		paths = append(paths, v.GetField())
	}
	return paths
}

// scoped returns a caller of tenant mine that may write within scopes.
func (s *site) scoped(scopes ...string) *caller {
	return s.with("mine", "boss", access.Rights{Role: access.Write}, scopes...)
}

func transferBatch(all bool, items ...*ledgerv1.TransferRequest) *ledgerv1.TransferBatchRequest {
	r := &ledgerv1.TransferBatchRequest{AllOrNothing: all}
	for _, i := range items {
		r.Items = append(r.Items, &ledgerv1.TransferBatchItem{Transfer: i})
	}
	return r
}

func TestScopedKeysDoOnlyWhatTheirScopesCover(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	boss := &caller{s, s.Key("mine", "boss", access.Admin)}
	boss.prepare("a")
	boss.prepare("b")
	c := s.scoped("ledger.transfer(from=u:a, to=spent:*)", "ledger.get_*(account=u:a)",
		"ledger.list_accounts(account=u:*)",
		"ledger.get_transfer", "ledger.watch_entries(account=u:a)", "stock.*(item=sku-*)", "sale.grab(buyer=b1)",
		"notify.send(recipient=+86*)", "order.create_order(subject=s1)", "lock.list_locks(name=job-*)",
		"idempotency.claim_keys")
	before := s.dump("mine")
	for _, x := range []struct {
		name   string
		m      proto.Message
		denied string // path of the first field; "-": the operation
	}{
		{"Transfer", pay("n1", "u:a", "empty:a", "1"), "postings[0].to"},
		{"Transfer", pay("n2", "u:b", "spent:a", "1"), "postings[0].from"},
		{"Hold", keep("n3", "u:a", "", "1"), "-"},
		{"TransferBatch", transferBatch(true, pay("n4", "u:a", "spent:a", "1"), pay("n5", "u:b", "spent:a", "1")),
			"items[1].transfer.postings[0].from"},
		{"TransferBatch", transferBatch(false, pay("n6", "u:a", "spent:a", "1"), pay("n7", "u:b", "spent:a", "1")),
			"items[1].transfer.postings[0].from"},
		{"Batch.Execute", execute(operation("", pay("n8", "u:a", "spent:a", "1")),
			operation("", pay("n9", "u:b", "spent:a", "1"))),
			"operations[1].request.postings[0].from"},
		{"Batch.Execute", &batchv1.ExecuteRequest{Operations: execute(operation("",
			pay("n0", "u:a", "spent:a", "1"))).GetOperations(),
			LockKeys: []string{"k"}}, "-"},
		{"GetBalance", &ledgerv1.GetBalanceRequest{Account: ref("u:b", "COIN")}, "account.code"},
		{"ListAccounts", &ledgerv1.ListAccountsRequest{}, "account"},
		{"ListAccounts", &ledgerv1.ListAccountsRequest{Pattern: "**"}, "pattern"},
		{"ListTransfers", &ledgerv1.ListTransfersRequest{}, "-"},
		{"Stock.ListItems", &stockv1.ListItemsRequest{}, "item"},
		{"Lock.ListLocks", &lockv1.ListLocksRequest{}, "name"},
		{"Lock.ListLocks", &lockv1.ListLocksRequest{Prefix: "jo"}, "prefix"},
		{"Stock.ListItems", &stockv1.ListItemsRequest{Prefix: "sk"}, "prefix"},
		{"Stock.Restock", &stockv1.RestockRequest{Item: "other", ChangeNo: "n", Quantity: 1}, "item"},
		{"Sale.GrabMany", &salev1.GrabManyRequest{Sale: "s", Grabs: []*salev1.Grab{{Buyer: "b1"}, {Buyer: "b2"}}},
			"grabs[1].buyer"},
		{"Notify.SendBatch",
			&notifyv1.SendBatchRequest{Items: []*notifyv1.SendRequest{{Channel: notifyv1.Channel_CHANNEL_SMS,
				Recipient: "+4912345678", BizNo: "x", Says: hello}}}, "items[0].recipient"},
		{"Notify.SendBatch", &notifyv1.SendBatchRequest{Items: []*notifyv1.SendRequest{{}}}, "items[0].recipient"},
		{"Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: "o1", Subject: "s1", Asset: "COIN", Amount: "1",
			Payee: "spent:a",
			Messages: []*notifyv1.SendRequest{{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+4912345678",
				Says: hello}}}, "messages[0].recipient"},
		{"Idempotency.ClaimKeys", &idempotencyv1.ClaimKeysRequest{Claims: []*idempotencyv1.ClaimKeyRequest{{Key: "k"}}},
			"-"},
	} {
		for _, p := range []protocol{connectProto, grpc} {
			a := c.call(p, x.name, x.m)
			field := "-"
			if f := a.Fields(t); len(f) > 0 {
				field = f[0]
			}
			if a.Code != "permission_denied" || a.Reason(t) != "PERMISSION_DENIED" || field != x.denied {
				t.Errorf("%s %v over %s: %q %s, field %s", x.name, x.m, p.Name, a.Code, a.Message, field)
			}
		}
	}
	if a := c.call(connectProto, "Transfer", pay("yes", "u:a", "spent:a", "1"), "Claim-Key",
		`"k1"`); a.Code != "permission_denied" {
		t.Errorf("a claim: %q", a.Code)
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	for name, m := range map[string]proto.Message{
		"Transfer":      pay("yes1", "u:a", "spent:a", "1"),
		"TransferBatch": transferBatch(false, pay("yes2", "u:a", "spent:a", "1")),
		"Batch.Execute": execute(operation("", pay("yes3", "u:a", "spent:a", "1"))),
		"GetBalance":    &ledgerv1.GetBalanceRequest{Account: ref("u:a", "COIN")},
		"GetTransfer": &ledgerv1.GetTransferRequest{Target: &ledgerv1.
			GetTransferRequest_TransferBizNo{TransferBizNo: "yes1"}},
		"ListAccounts":    &ledgerv1.ListAccountsRequest{Pattern: "u:*"},
		"Stock.ListItems": &stockv1.ListItemsRequest{Prefix: "sku-"},
		"Lock.ListLocks":  &lockv1.ListLocksRequest{Prefix: "job-"},
	} {
		if a := c.call(connectJSON, name, m); a.Code == "permission_denied" {
			t.Errorf("%s: %s", name, a.Message)
		}
	}
	wantWatch(t, c, "u:a", 0)
	wantWatch(t, c, "u:b", connect.CodePermissionDenied)
	wantWatch(t, c, "", connect.CodePermissionDenied)
}

// A refusal names fields as the caller's format does, and scopes as they are written.
func TestRefusalsNameScopesAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	const scope = "ledger.release(hold_biz_no=mine-*)"
	c := newSite(t).scoped(scope)
	other := &ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: "other"}}
	for proto, field := range map[servertest.Protocol]string{connectJSON: "holdBizNo", connectProto: "hold_biz_no"} {
		if a := c.call(proto, "Release", other); a.Message != field+`: "other" is outside of the scope `+scope {
			t.Errorf("%v: %s", proto, a.Message)
		}
	}
}

// wantWatch watches the entries of a pattern.
func wantWatch(t *testing.T, c *caller, pattern string, want connect.Code) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := c.client().WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{Pattern: pattern, Cursor: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if stream.Receive() != (want == 0) || want != 0 && connect.CodeOf(stream.Err()) != want {
		t.Errorf("watch %q: %v", pattern, stream.Err())
	}
}

// TestReferencesDoNotReachBeyondScopes fills in the number of a reservation that the scope does not cover.
func TestReferencesDoNotReachBeyondScopes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	boss := &caller{s, s.Key("mine", "boss", access.Admin)}
	boss.stocked("sku-1")
	for _, no := range []string{"mine-1", "theirs-1"} {
		ok(boss, "Stock.Reserve", &stockv1.ReserveRequest{Item: "sku-1", ReservationNo: no, Quantity: 1},
			new(stockv1.ReserveResponse))
	}
	c := s.scoped("stock.reserve", "stock.cancel(reservation_no=mine-*)")
	r := func(no string) *batchv1.ExecuteRequest {
		return execute(operation("kept", &stockv1.ReserveRequest{Item: "sku-1", ReservationNo: no, Quantity: 1}),
			operation("", &stockv1.CancelRequest{Item: "sku-1"}, "reservation_no=kept:reservation.reservation_no"))
	}
	a := c.call(connectProto, "Batch.Execute", r("theirs-1"))
	if a.Reason(t) != "PERMISSION_DENIED" || !slices.Contains(a.Fields(t), "operations[1].request.reservation_no") {
		t.Errorf("%s %s, %v", a.Code, a.Message, a.Fields(t))
	}
	if a := c.call(connectProto, "Batch.Execute", r("mine-1")); a.Code != "" {
		t.Errorf("its own: %s %s", a.Code, a.Message)
	}
}

func TestLimitsOfAccountsNeedAnAdministrator(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	boss := &caller{s, s.Key("mine", "boss", access.Admin)}
	boss.prepare("a")
	c := &caller{s, s.Key("mine", "clerk", access.Write)}
	overdraft, floor := "-5", "5"
	account := func(n *ledgerv1.NewAccount) *ledgerv1.CreateAccountsRequest {
		n.Code, n.Asset = "new", "COIN"
		return &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "other", Asset: "COIN"}, n}}
	}
	for field, m := range map[string]proto.Message{
		"accounts[1].unbounded":   account(&ledgerv1.NewAccount{Unbounded: true}),
		"accounts[1].min_balance": account(&ledgerv1.NewAccount{MinBalance: &overdraft}),
		"min_balance":             &ledgerv1.UpdateAccountRequest{Account: ref("u:a", "COIN"), MinBalance: &floor},
		"unbounded":               &ledgerv1.UpdateAccountRequest{Account: ref("u:a", "COIN"), Unbounded: true},
		"max_balance":             &ledgerv1.UpdateAccountRequest{Account: ref("u:a", "COIN"), MaxBalance: &floor},
		"clear_max_balance":       &ledgerv1.UpdateAccountRequest{Account: ref("u:a", "COIN"), ClearMaxBalance: true},
	} {
		name := "UpdateAccount"
		if strings.HasPrefix(field, "accounts") {
			name = "CreateAccounts"
		}
		if a := c.call(connectProto, name, m); a.Reason(t) != "PERMISSION_DENIED" || a.Fields(t)[0] != field {
			t.Errorf("%s: %s %s", field, a.Code, a.Message)
		}
		a := c.call(connectProto, "Batch.Execute", execute(operation("", m)))
		if a.Reason(t) != "PERMISSION_DENIED" || a.Fields(t)[0] != "operations[0].request."+field {
			t.Errorf("%s in an Execute: %s %s %v", field, a.Code, a.Message, a.Fields(t))
		}
	}
	freeze := &ledgerv1.FreezeAccountRequest{Account: ref("u:a", "COIN")}
	if a := c.call(connectProto, "Batch.Execute", execute(operation("", freeze))); a.Reason(t) != "PERMISSION_DENIED" {
		t.Errorf("a freeze in an Execute: %s", a.Code)
	}
	for name, m := range map[string]proto.Message{
		"CreateAccounts": account(&ledgerv1.NewAccount{MinBalance: &floor}),
		"UpdateAccount": &ledgerv1.UpdateAccountRequest{Account: ref("u:a", "COIN"),
			Metadata: map[string]string{"a": "b"}},
	} {
		if a := c.call(connectProto, name, m); a.Code == "permission_denied" {
			t.Errorf("%s: %s", name, a.Message)
		}
	}
	if a := boss.call(connectProto, "Batch.Execute", execute(operation("", freeze))); a.Code != "" {
		t.Errorf("an administrator: %s", a.Message)
	}
}

func TestKeysHaveTheirRateAndCallsInFlight(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	list := func(c *caller) answer { return c.call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}) }
	slow := s.with("mine", "slow", access.Rights{Role: access.Read, CallRate: 2})
	n := 0
	for a := list(slow); a.Code == ""; a = list(slow) {
		if n++; n > 1000 {
			t.Fatal("there is no limit")
		}
	}
	a := list(slow)
	if a.Reason(t) != "BUSY" || !strings.Contains(a.Message, "2 calls a second") || a.Header.Get("Retry-After") == "" {
		t.Errorf("%s %s %v", a.Code, a.Message, a.Header)
	}
	eventually(t, 20*time.Second, "another call is admitted", func() bool { return list(slow).Code == "" })

	few := s.with("mine", "few", access.Rights{Role: access.Read, CallLimit: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := few.client().WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{Cursor: "0"})
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	if a := list(few); a.Reason(t) != "BUSY" || !strings.Contains(a.Message, "1 calls in flight") {
		t.Errorf("beside a watch: %s %s", a.Code, a.Message)
	}
	cancel()
	eventually(t, 20*time.Second, "the watch has ended", func() bool { return list(few).Code == "" })
	for range 5 { // each call frees its slot
		if a := list(few); a.Code != "" {
			t.Errorf("alone: %s", a.Message)
		}
	}
}
