package rpc_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

func putItem(item, label string) *stockv1.PutItemRequest {
	return &stockv1.PutItemRequest{Item: item, Label: label, Metadata: manyNames}
}

func restock(item, no string, n int64) *stockv1.RestockRequest {
	return &stockv1.RestockRequest{Item: item, ChangeNo: no, Quantity: n}
}

func adjust(item, no string, n int64) *stockv1.AdjustStockRequest {
	return &stockv1.AdjustStockRequest{Item: item, ChangeNo: no, Quantity: n, Reason: secretNote}
}

func unsell(item, no, of string, n int64) *stockv1.UnsellRequest {
	return &stockv1.UnsellRequest{Item: item, ChangeNo: no, ReservationNo: of, Quantity: n}
}

func reserve(item, no string, n int64) *stockv1.ReserveRequest {
	return &stockv1.ReserveRequest{Item: item, ReservationNo: no, Quantity: n, Ref: secretNote}
}

func deduct(item, no string, n int64) *stockv1.DeductRequest {
	return &stockv1.DeductRequest{Item: item, ReservationNo: no, Quantity: n}
}

func confirm(item, no string) *stockv1.ConfirmRequest {
	return &stockv1.ConfirmRequest{Item: item, ReservationNo: no}
}

func cancel(item, no string) *stockv1.CancelRequest {
	return &stockv1.CancelRequest{Item: item, ReservationNo: no}
}

// stocked puts an item with 100 units, of which "open" has reserved 5, "sold" bought 5, and "gone" was cancelled.
func (c *caller) stocked(item string) {
	c.T.Helper()
	c.executed(execute(operation("", putItem(item, secretNote)), operation("", restock(item, "first", 100)),
		operation("", reserve(item, "open", 5)), operation("", deduct(item, "sold", 5)),
		operation("", cancel(item, "gone"))), "X-Request-Id", secretRequest)
}

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, _ []string) { c.stocked(x.paid) })
	goWell = append(goWell, "Stock.PutItem", "Stock.ListItems", "Stock.ListReservations")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Stock.PutItem":     func(x resources) []proto.Message { return all(putItem(x.paid, "other")) },
		"Stock.GetItem":     func(x resources) []proto.Message { return all(&stockv1.GetItemRequest{Item: x.paid}) },
		"Stock.Restock":     func(x resources) []proto.Message { return all(restock(x.paid, "walk-1", 3)) },
		"Stock.AdjustStock": func(x resources) []proto.Message { return all(adjust(x.paid, "walk-2", -3)) },
		"Stock.Unsell":      func(x resources) []proto.Message { return all(unsell(x.paid, "walk-3", "sold", 1)) },
		"Stock.Reserve": func(x resources) []proto.Message {
			return all(reserve(x.paid, "walk-4", 1), reserve(x.paid, "open", 5))
		},
		"Stock.Deduct":  func(x resources) []proto.Message { return all(deduct(x.paid, "walk-5", 1)) },
		"Stock.Confirm": func(x resources) []proto.Message { return all(confirm(x.paid, "open")) },
		"Stock.Cancel":  func(x resources) []proto.Message { return all(cancel(x.paid, "open")) },
		"Stock.ListItems": func(x resources) []proto.Message {
			return all(&stockv1.ListItemsRequest{}, &stockv1.ListItemsRequest{Prefix: x.paid})
		},
		"Stock.GetReservation": func(x resources) []proto.Message {
			return all(&stockv1.GetReservationRequest{Item: x.paid, ReservationNo: "open"})
		},
		"Stock.ListReservations": func(x resources) []proto.Message {
			return all(&stockv1.ListReservationsRequest{Item: x.paid},
				&stockv1.ListReservationsRequest{Item: x.paid,
					State: stockv1.ReservationState_RESERVATION_STATE_RESERVED})
		},
	} {
		examples[name] = example
	}

	preparers["Stock"] = func(c *caller, tag string) { c.stocked(tag) }
	for name, x := range map[string]change{
		"Stock.PutItem": {well: func(tag string) proto.Message { return putItem("new-"+tag, "Tea") }},
		"Stock.Restock": {well: func(tag string) proto.Message { return restock(tag, "second", 1) }},
		"Stock.AdjustStock": {reason: "STOCK_BELOW_PROMISED",
			well:    func(tag string) proto.Message { return adjust(tag, "lost", -1) },
			refused: func(tag string) proto.Message { return adjust(tag, "lost", -91) }},
		"Stock.Unsell": {reason: "UNSELL_EXCEEDS_SOLD",
			well:    func(tag string) proto.Message { return unsell(tag, "back", "sold", 5) },
			refused: func(tag string) proto.Message { return unsell(tag, "back", "sold", 6) }},
		"Stock.Reserve": {reason: "OUT_OF_STOCK", well: func(tag string) proto.Message { return reserve(tag, "a", 90) },
			refused: func(tag string) proto.Message { return reserve(tag, "a", 91) }},
		"Stock.Deduct": {reason: "OUT_OF_STOCK", well: func(tag string) proto.Message { return deduct(tag, "a", 90) },
			refused: func(tag string) proto.Message { return deduct(tag, "a", 91) }},
		"Stock.Confirm": {reason: "RESERVATION_ENDED",
			well:    func(tag string) proto.Message { return confirm(tag, "open") },
			refused: func(tag string) proto.Message { return confirm(tag, "gone") }},
		"Stock.Cancel": {reason: "RESERVATION_ENDED",
			well:    func(tag string) proto.Message { return cancel(tag, "open") },
			refused: func(tag string) proto.Message { return cancel(tag, "sold") }},
	} {
		changes[name] = x
	}
}

func (c *caller) item(name string) *stockv1.Item {
	c.T.Helper()
	return ok(c, "Stock.GetItem", &stockv1.GetItemRequest{Item: name}, new(stockv1.GetItemResponse)).GetItem()
}

func (c *caller) wantItem(name, want string) {
	c.T.Helper()
	i := c.item(name)
	if got := fmt.Sprintf("%d/%d/%d/%d", i.GetAvailable(), i.GetReserved(), i.GetSold(), i.GetStocked()); got != want {
		c.T.Errorf("%s has %s, want %s", name, got, want)
	}
}

func TestStockIsReservedAndSold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	if i := ok(c, "Stock.PutItem", putItem("tea", "Tea"), new(stockv1.PutItemResponse)); i.GetExisted() ||
		i.GetItem().GetLabel() != "Tea" || i.GetItem().GetSegments() != 1 || i.GetItem().GetCreateTime() == nil {
		t.Errorf("put: %v", i)
	}
	if i := ok(c, "Stock.PutItem", putItem("tea", "Tea"), new(stockv1.PutItemResponse)); !i.GetExisted() {
		t.Errorf("put again: %v", i)
	}
	x := ok(c, "Stock.Restock", restock("tea", "r", 10), new(stockv1.RestockResponse)).GetChange()
	if x.GetStocked() != 10 || x.GetKind() != stockv1.ChangeKind_CHANGE_KIND_RESTOCK || x.GetId() == 0 {
		t.Errorf("restocked: %v", x)
	}
	r := ok(c, "Stock.Reserve", reserve("tea", "a", 4), new(stockv1.ReserveResponse)).GetReservation()
	if life := r.GetExpireTime().AsTime().Sub(r.GetCreateTime().AsTime()); life != 15*time.Minute ||
		r.GetState() != stockv1.ReservationState_RESERVATION_STATE_RESERVED || r.GetCloseTime() != nil {
		t.Errorf("reserved for %v: %v", life, r)
	}
	again := ok(c, "Stock.Reserve", reserve("tea", "a", 4), new(stockv1.ReserveResponse))
	if !again.GetExisted() || !proto.Equal(again.GetReservation(), r) {
		t.Errorf("reserved again: %v", again)
	}
	other := c.call(connectJSON, "Stock.Reserve", &stockv1.ReserveRequest{Item: "tea", ReservationNo: "a", Quantity: 5,
		Life: durationpb.New(time.Hour)})
	if other.Reason(t) != "RESERVATION_EXISTS_DIFFERENT" || other.State("differs") != "life,quantity,ref" ||
		other.State("first_id") != fmt.Sprint(r.GetId()) {
		t.Errorf("other content: %s", other.Raw)
	}
	if a := c.call(connectJSON, "Stock.Deduct", deduct("tea", "b", 7)); a.Reason(t) != "OUT_OF_STOCK" ||
		a.State("available") != "6" {
		t.Errorf("too many: %s", a.Raw)
	}
	sold := ok(c, "Stock.Confirm", confirm("tea", "a"), new(stockv1.ConfirmResponse)).GetReservation()
	if sold.GetState() != stockv1.ReservationState_RESERVATION_STATE_SOLD || sold.GetCloseTime() == nil {
		t.Errorf("confirmed: %v", sold)
	}
	if a := c.call(connectJSON, "Stock.Cancel", cancel("tea", "a")); a.Reason(t) != "RESERVATION_ENDED" ||
		a.State("state") != "sold" {
		t.Errorf("cancelled: %s", a.Raw)
	}
	ok(c, "Stock.Unsell", unsell("tea", "u", "a", 1), new(stockv1.UnsellResponse))
	got := ok(c, "Stock.GetReservation", &stockv1.GetReservationRequest{Item: "tea", ReservationNo: "a"},
		new(stockv1.GetReservationResponse)).GetReservation()
	if got.GetUnsold() != 1 || got.GetQuantity() != 4 || got.GetRef() != secretNote {
		t.Errorf("read: %v", got)
	}
	c.wantItem("tea", "7/0/3/10")
}

func TestStockFieldsHaveBounds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.stocked("tea")
	for what, r := range map[string]proto.Message{
		"quantity":      reserve("tea", "a", 0),
		"quantity ":     deduct("tea", "a", 1_000_000_000_001),
		"quantity  ":    adjust("tea", "a", 0),
		"quantity   ":   adjust("tea", "a", -1_000_000_000_001),
		"item":          deduct("tea\n", "a", 1),
		"item ":         deduct("", "a", 1),
		"reservationNo": deduct("tea", " a", 1),
		"changeNo":      restock("tea", strings.Repeat("x", 129), 1),
		"life": &stockv1.ReserveRequest{Item: "tea", ReservationNo: "a", Quantity: 1,
			Life: durationpb.New(999 * time.Millisecond)},
		"reason":   &stockv1.AdjustStockRequest{Item: "tea", ChangeNo: "a", Quantity: 1},
		"segments": &stockv1.PutItemRequest{Item: "tea", Segments: 65},
		"ref":      &stockv1.DeductRequest{Item: "tea", ReservationNo: "a", Quantity: 1, Ref: strings.Repeat("帳", 86)},
	} {
		name := "Stock." + strings.TrimSuffix(string(r.ProtoReflect().Descriptor().Name()), "Request")
		if a := c.call(connectJSON, name, r); a.Reason(t) != "FIELD_INVALID" ||
			!strings.Contains(a.Message, strings.TrimSpace(what)) {
			t.Errorf("%s: %s %s", what, a.Code, a.Message)
		}
	}
	for _, r := range []proto.Message{restock("tea", strings.Repeat("x", 128), 1_000_000_000_000),
		&stockv1.DeductRequest{Item: "tea", ReservationNo: strings.Repeat("y", 128), Quantity: 1,
			Ref: strings.Repeat("帳", 85)}} {
		name := "Stock." + strings.TrimSuffix(string(r.ProtoReflect().Descriptor().Name()), "Request")
		if a := c.call(connectJSON, name, r); a.Code != "" {
			t.Errorf("%s: %s", name, a.Message)
		}
	}
}

// Money and goods move together, or neither does. A quantity is taken from an earlier result.
func TestStockIsSoldInAnExecute(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	c.stocked("tea")
	sell := execute(operation("", deduct("tea", "order-1", 3)), operation("", pay("order-1", "u:a", "world", "30")))
	c.executed(sell, "Idempotency-Key", "order-1")
	if _, existed := c.executed(sell, "Idempotency-Key", "other"); !slices.Equal(existed, []bool{true, true}) {
		t.Errorf("a repeat: %v", existed)
	}
	c.wantItem("tea", "87/5/8/100")
	poor := execute(operation("", deduct("tea", "order-2", 3)), operation("", pay("order-2", "u:a", "world", "3000")))
	if a := c.call(connectJSON, "Batch.Execute", poor); a.Reason(t) != "INSUFFICIENT_FUNDS" {
		t.Errorf("without money: %s", a.Raw)
	}
	late := execute(operation("", pay("order-3", "u:a", "world", "1")), operation("", reserve("tea", "order-3", 88)))
	if a := c.call(connectJSON, "Batch.Execute", late); a.Reason(t) != "OUT_OF_STOCK" || a.State("operation") != "1" {
		t.Errorf("without goods: %s", a.Raw)
	}
	c.wantItem("tea", "87/5/8/100")

	got, _ := c.executed(execute(operation("sold", confirm("tea", "open")),
		operation("back", unsell("tea", "back", "open", 0), "quantity=sold:reservation.quantity"),
		operation("", reserve("tea", "early", 2)), operation("", cancel("tea", "early")),
		operation("", adjust("tea", "lost", -1)), operation("", restock("tea", "more", 1)),
		operation("", &stockv1.PutItemRequest{Item: "tea", Label: "Green tea", Segments: 4}),
		operation("", deduct("tea", "big", 90))))
	if x := got[1].(*stockv1.UnsellResponse).GetChange(); x.GetQuantity() != 5 {
		t.Errorf("unsold %v", x)
	}
	c.wantItem("tea", "2/0/98/100")
	if i := c.item("tea"); i.GetLabel() != "Green tea" || i.GetSegments() != 4 {
		t.Errorf("item %v", i)
	}
	if a := c.call(connectJSON, "Stock.PutItem", &stockv1.PutItemRequest{Item: "tea",
		Segments: 3}); a.Reason(t) != "SEGMENTS_TOO_FEW" || a.State("segments") != "4" {
		t.Errorf("fewer segments: %s", a.Raw)
	}
	undone := execute(operation("", reserve("tea", "twice", 1)), operation("", reserve("tea", "twice", 2)))
	if a := c.call(connectJSON, "Batch.Execute", undone); a.Reason(t) != "RESERVATION_EXISTS_DIFFERENT" ||
		a.State("first_id") != "" {
		t.Errorf("an error names a reservation that was undone: %s", a.Raw)
	}
}

// Numbers of reservations come from earlier results, even from an operation whose own number came from a reference.
func TestReferencesFillInNumbersOfReservations(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	c.stocked("tea")
	buy := func(i int) *batchv1.ExecuteRequest {
		return execute(operation("paid", pay(fmt.Sprint("order-", i), "u:a", "world", "1")),
			operation("kept", reserve("tea", "", 2), "reservation_no=paid:transfer.biz_no"),
			operation("sold", confirm("tea", ""), "reservation_no=kept:reservation.reservation_no"),
			operation("back", unsell("tea", fmt.Sprint("back-", i), "", 1),
				"reservation_no=sold:reservation.reservation_no"))
	}
	dry := buy(1)
	dry.DryRun = true
	c.executed(dry)
	c.wantItem("tea", "90/5/5/100")
	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() { c.executed(buy(i)) })
	}
	work.Wait()
	c.wantItem("tea", "70/5/25/100")
	if got, existed := c.executed(buy(3)); !slices.Equal(existed, []bool{true, true, true, true}) ||
		got[2].(*stockv1.ConfirmResponse).GetReservation().GetReservationNo() != "order-3" {
		t.Errorf("a repeat: %v, %v", existed, got)
	}
	missing := execute(operation("paid", pay("order-x", "u:a", "world", "1")),
		operation("", confirm("tea", ""), "reservation_no=paid:transfer.biz_no"))
	if a := c.call(connectJSON, "Batch.Execute", missing); a.Reason(t) != "RESERVATION_NOT_FOUND" ||
		a.State("operation") != "1" {
		t.Errorf("a number without a reservation: %s", a.Raw)
	}
	long := execute(operation("paid", pay(strings.Repeat("n", 128), "u:a", "world", "1")),
		operation("", confirm("tea", ""), "reservation_no=paid:transfer.subject"))
	if a := c.call(connectJSON, "Batch.Execute", long); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("a field that is no text of the result: %s", a.Raw)
	}
	c.wantItem("tea", "70/5/25/100")
}

func TestSpentTokenNamesTheReservation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	c.stocked("tea")
	token := ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{},
		new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
	ok(c, "Stock.Deduct", deduct("tea", "a", 1), new(stockv1.DeductResponse), "Submit-Token", token)
	a := c.call(connectJSON, "Stock.Deduct", deduct("tea", "b", 1), "Submit-Token", token)
	if a.Reason(t) != "TOKEN_SPENT" || a.State("first_item") != "tea" || a.State("first_reservation_no") != "a" {
		t.Errorf("%s", a.Raw)
	}
}

func TestItemsAndReservationsAreListed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for _, name := range []string{"tea", "coffee", "tee shirt"} {
		c.stocked(name)
	}
	var names []string
	for token := ""; ; {
		res := ok(c, "Stock.ListItems", &stockv1.ListItemsRequest{Prefix: "te", PageSize: 1, PageToken: token},
			new(stockv1.ListItemsResponse))
		for _, i := range res.GetItems() {
			names = append(names, i.GetItem())
			if i.GetAvailable() != 90 || i.GetStocked() != 100 {
				t.Errorf("%v", i)
			}
		}
		if token = res.GetNextPageToken(); token == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"tea", "tee shirt"}) {
		t.Errorf("items %v", names)
	}
	ops := execute()
	for i := range 5 {
		r := reserve("tea", fmt.Sprint("r", i), 1)
		r.Life = durationpb.New(time.Duration(10-i) * time.Minute)
		ops.Operations = append(ops.Operations, operation("", r))
	}
	c.executed(ops)
	for state, want := range map[stockv1.ReservationState]string{
		stockv1.ReservationState_RESERVATION_STATE_UNSPECIFIED: "gone open r0 r1 r2 r3 r4 sold",
		stockv1.ReservationState_RESERVATION_STATE_RESERVED:    "r4 r3 r2 r1 r0 open", // the order in which they expire
		stockv1.ReservationState_RESERVATION_STATE_SOLD:        "sold",
		stockv1.ReservationState_RESERVATION_STATE_CANCELLED:   "gone",
		stockv1.ReservationState_RESERVATION_STATE_EXPIRED:     "",
	} {
		var numbers []string
		for token := ""; ; {
			res := ok(c, "Stock.ListReservations",
				&stockv1.ListReservationsRequest{Item: "tea", State: state, PageSize: 2,
					PageToken: token}, new(stockv1.ListReservationsResponse))
			for _, r := range res.GetReservations() {
				numbers = append(numbers, r.GetReservationNo())
			}
			if token = res.GetNextPageToken(); token == "" {
				break
			}
		}
		if got := strings.Join(numbers, " "); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
	if a := c.call(connectJSON, "Stock.ListReservations", &stockv1.ListReservationsRequest{Item: "coffee", PageSize: 2,
		PageToken: ok(c, "Stock.ListReservations", &stockv1.ListReservationsRequest{Item: "tea", PageSize: 2},
			new(stockv1.ListReservationsResponse)).GetNextPageToken()}); a.Reason(t) != "PAGE_TOKEN_INVALID" {
		t.Errorf("the token of another item: %s", a.Raw)
	}
	if a := c.call(connectJSON, "Stock.GetReservation", &stockv1.GetReservationRequest{Item: "tea",
		ReservationNo: "r9"}); a.Reason(t) != "RESERVATION_NOT_FOUND" {
		t.Errorf("no reservation: %s", a.Raw)
	}
	if a := c.call(connectJSON, "Stock.GetItem",
		&stockv1.GetItemRequest{Item: "milk"}); a.Reason(t) != "ITEM_NOT_FOUND" {
		t.Errorf("no item: %s", a.Raw)
	}
}
