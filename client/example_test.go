package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
)

// Alice has 100.00 and buys for 12.30.
func Example() {
	url, end := exampleLedger()
	defer end()

	c := client.New(url)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()

	res, err := c.Ledger.Transfer(ctx, &ledgerv1.TransferRequest{
		BizNo:    "order-1001",
		Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "12.30"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range res.GetTransfer().GetEntries() {
		fmt.Printf("%s %s: %s to %s\n", e.GetAccount(), e.GetAmount(), e.GetBalanceBefore(), e.GetBalanceAfter())
	}
	// Output:
	// alice -12.30: 100.00 to 87.70
	// shop 12.30: 0.00 to 12.30
}

// A purchase with a reserve: hold an amount, capture a part of it at once, and book points, all or nothing.
func ExampleClient_Execute() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	results, err := c.Execute(context.Background(),
		client.Operation{Name: "keep", Request: &ledgerv1.HoldRequest{BizNo: "order-7", From: "alice", To: "shop",
			Asset: "CNY", Amount: "20.00"}},
		client.Operation{Request: &ledgerv1.CaptureRequest{BizNo: "order-7-part", Amount: "5.00"},
			From: map[string]string{"hold_id": "keep.hold.id"}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	paid, err := client.ResponseOf[*ledgerv1.CaptureResponse](results, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(paid.GetTransfer().GetBizNo(), "of", paid.GetHold().GetAmount(), "captured",
		paid.GetHold().GetCaptured())

	// None of these takes effect: alice does not have 1,000.00.
	_, err = c.Execute(context.Background(),
		client.Operation{Request: &ledgerv1.TransferRequest{BizNo: "gift-1",
			Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "1.00"}}}},
		client.Operation{Request: &ledgerv1.TransferRequest{BizNo: "gift-2",
			Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "1000.00"}}}},
	)
	if e, ok := client.AsError(err); ok {
		fmt.Println(e.Reason, "of operation", e.Metadata["operation"])
	}
	// Output:
	// order-7-part of 20.00 captured 5.00
	// INSUFFICIENT_FUNDS of operation 1
}

// The text message is part of the transfer's commit: it is sent if and only if the money moved.
func ExampleClient_Execute_message() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	results, err := c.Execute(context.Background(),
		client.Operation{Request: &ledgerv1.TransferRequest{BizNo: "order-8",
			Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "1.00"}}}},
		client.Operation{Request: &notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_SMS,
			Recipient: "+86 138 1234 5678", BizNo: "order-8-paid",
			Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: "Order 8 is paid."}}}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	sent, err := client.ResponseOf[*notifyv1.SendResponse](results, 1)
	fmt.Println(sent.GetMessage().GetRecipientHint(), sent.GetMessage().GetState(), err)
	// Output:
	// +86138****5678 MESSAGE_STATE_QUEUED <nil>
}

// A queue delivers a message twice. The message's id is the key, so the second call gets the first one's
// answer.
func ExampleWithKey() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	consume := func(messageID string) {
		ctx := client.WithKey(context.Background(), messageID)
		ctx, info := client.WithInfo(ctx)
		res, err := c.Ledger.Transfer(ctx, &ledgerv1.TransferRequest{
			BizNo:    "order-1001",
			Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "12.30"}},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("alice has", res.GetTransfer().GetEntries()[0].GetBalanceAfter(), "replayed:", info.Replayed)
	}
	consume("message-42")
	consume("message-42")
	// Output:
	// alice has 87.70 replayed: false
	// alice has 87.70 replayed: true
}

// The reason decides what the program does, and ShowToUser what the user sees.
func ExampleAsError() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	_, err := c.Ledger.Transfer(context.Background(), &ledgerv1.TransferRequest{
		BizNo:    "order-1002",
		Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "200.00"}},
	})
	if errors.Is(err, client.ReasonInsufficientFunds) {
		e, _ := client.AsError(err)
		fmt.Println("class:", e.Class)
		fmt.Println("next step:", e.NextStep)
		fmt.Println("available:", e.Metadata["available"])
		fmt.Println("for the user:", e.ShowToUser)
	}
	// Output:
	// class: business_refusal
	// next step: new_key
	// available: 100.00
	// for the user: true
}

// The items of a batch succeed or fail independently, each with its own error.
func ExampleItemError() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	item := func(bizNo, amount string) *ledgerv1.TransferBatchItem {
		return &ledgerv1.TransferBatchItem{Transfer: &ledgerv1.TransferRequest{
			BizNo:    bizNo,
			Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: amount}},
		}}
	}
	res, err := c.Ledger.TransferBatch(context.Background(), &ledgerv1.TransferBatchRequest{
		Items: []*ledgerv1.TransferBatchItem{item("order-1005", "12.30"), item("order-1006", "200.00"),
			item("order-1007", "12,30")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range res.GetResults() {
		if e := client.ItemError(r.GetError()); e != nil {
			fmt.Println(e.Reason, e.NextStep, e.Metadata["available"], len(e.Fields))
			continue
		}
		fmt.Println(r.GetTransfer().GetBizNo(), "done")
	}
	// Output:
	// order-1005 done
	// INSUFFICIENT_FUNDS new_key 87.70 0
	// FIELD_INVALID fix  1
}

// A hundred concurrent buyers in a few RPCs.
func ExampleWithGather() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url, client.WithGather())
	defer c.Close()

	var buyers sync.WaitGroup
	var mu sync.Mutex
	bought, refused := 0, 0
	for i := range 100 {
		buyers.Go(func() {
			_, err := c.Ledger.Transfer(context.Background(), &ledgerv1.TransferRequest{
				BizNo:    fmt.Sprintf("order-%d", i),
				Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "2.50"}},
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				bought++
			case errors.Is(err, client.ReasonInsufficientFunds):
				refused++
			}
		})
	}
	buyers.Wait()
	fmt.Println(bought, "bought,", refused, "refused")
	// Output:
	// 40 bought, 60 refused
}

// The response headers of connect.NewClientContext report a replay too, for a client without WithGather.
func ExampleReplayed() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	for range 2 {
		ctx, call := connect.NewClientContext(client.WithKey(context.Background(), "message-43"))
		_, err := c.Ledger.Transfer(ctx, &ledgerv1.TransferRequest{
			BizNo:    "order-1003",
			Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "1.00"}},
		})
		fmt.Println(client.Replayed(call), err)
	}
	// Output:
	// false <nil>
	// true <nil>
}

// The interceptors in another generated client.
func ExampleRetryInterceptor() {
	url, end := exampleLedger()
	defer end()

	ledger := ledgerv1connect.NewLedgerServiceClient(http.DefaultClient, url, connect.WithInterceptors(
		client.ErrorInterceptor(),
		client.RequestIDInterceptor(),
		client.KeyInterceptor(),
		client.RetryInterceptor(client.RetryPolicy{Attempts: 5, AttemptTimeout: 2 * time.Second}),
	))
	ctx, info := client.WithInfo(context.Background())
	_, err := ledger.Transfer(ctx, &ledgerv1.TransferRequest{
		BizNo:    "order-1004",
		Postings: []*ledgerv1.Posting{{From: "alice", To: "nobody", Asset: "CNY", Amount: "1.00"}},
	})
	fmt.Println(client.ReasonOf(err), "after", info.Attempts, "attempt")
	// Output:
	// ACCOUNT_NOT_FOUND after 1 attempt
}

// A buyer clicks the button twice. The page has a token, which the first submit spends; the second one learns
// the order of the first.
func ExampleWithSubmitToken() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	issued, err := c.Idempotency.IssueTokens(context.Background(),
		&idempotencyv1.IssueTokensRequest{Subject: "alice", Purpose: "order"})
	if err != nil {
		fmt.Println(err)
		return
	}
	submit := func(token, orderNo string) (next string) {
		ctx := client.WithSubmitToken(context.Background(),
			client.SubmitToken{Token: token, Subject: "alice", Purpose: "order", Next: true})
		ctx, info := client.WithInfo(ctx)
		_, err := c.Ledger.Transfer(ctx, &ledgerv1.TransferRequest{
			BizNo:    orderNo,
			Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "12.30"}},
		})
		if errors.Is(err, client.ReasonTokenSpent) {
			e, _ := client.AsError(err)
			fmt.Println("the order is", e.Metadata["first_biz_no"])
			return ""
		}
		fmt.Println(orderNo, "error:", err)
		return info.NextToken
	}
	next := submit(issued.GetTokens()[0], "order-1001")
	submit(issued.GetTokens()[0], "order-1002")
	submit(next, "order-1003") // the page, still open, submits another order
	// Output:
	// order-1001 error: <nil>
	// the order is order-1001
	// order-1003 error: <nil>
}

// A page generates an id when it is opened. However often its form is submitted, on any server, there is one
// transfer.
func ExampleWithClaim() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	submit := func(orderNo string) {
		ctx := client.WithClaim(context.Background(), client.Claim{Key: "goods-7-1763750000-8f3k", FirstOnly: true})
		_, err := c.Ledger.Transfer(ctx, &ledgerv1.TransferRequest{
			BizNo:    orderNo,
			Postings: []*ledgerv1.Posting{{From: "alice", To: "shop", Asset: "CNY", Amount: "12.30"}},
		})
		if e, ok := client.AsError(err); ok {
			fmt.Println(e.Reason, "by", e.Metadata["result"])
			return
		}
		fmt.Println("bought")
	}
	submit("order-1001")
	submit("order-1002")
	// Output:
	// bought
	// KEY_CLAIMED by order-1001
}
