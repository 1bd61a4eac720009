package load

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

// request is a complete HTTP request whose variable parts are overwritten in place.
type request struct {
	bytes []byte
	key   int    // offset of the Idempotency-Key; 0: none
	items []item // offsets of the transfers
}

// item has the offsets of one transfer's variable parts.
type item struct{ bizNo, from, to, amount int }

// Placeholders with the widths of a transfer's parts. They occur nowhere else in a request.
const (
	bizNoMark  = "BIZNO-BIZNO-BIZNO-"
	fromMark   = "FROM-FROM-FR"
	toMark     = "TO-TO-TO-TO-"
	amountMark = "AMNT"
	keyMark    = "key-" + bizNoMark
)

// newRequest builds the request with the generated types, so that it equals any client's.
func newRequest(spec *Spec) (*request, error) {
	transfer := &ledgerv1.TransferRequest{BizNo: bizNoMark,
		Postings: []*ledgerv1.Posting{{From: fromMark, To: toMark, Asset: Asset, Amount: amountMark}}}
	procedure, message := ledgerv1connect.LedgerServiceTransferProcedure, proto.Message(transfer)
	if spec.Items > 0 {
		batch := &ledgerv1.TransferBatchRequest{}
		for range spec.Items {
			batch.Items = append(batch.Items, &ledgerv1.TransferBatchItem{Transfer: transfer})
		}
		procedure, message = ledgerv1connect.LedgerServiceTransferBatchProcedure, batch
	}
	body, err := proto.Marshal(message)
	if err != nil {
		return nil, err
	}
	r, header := &request{}, ""
	if spec.Keys {
		header = "Idempotency-Key: " + keyMark + "\r\n"
	}
	head, err := frame(spec, procedure, header, len(body))
	if err != nil {
		return nil, err
	}
	if spec.Keys {
		r.key = find(head, 0, keyMark)
	}
	at := len(head)
	r.bytes = append(head, body...)
	for range max(spec.Items, 1) {
		i := item{bizNo: find(r.bytes, at, bizNoMark)}
		i.from = find(r.bytes, i.bizNo, fromMark)
		i.to = find(r.bytes, i.from, toMark)
		i.amount = find(r.bytes, i.to, amountMark)
		r.items = append(r.items, i)
		at = i.amount
	}
	return r, nil
}

// frame is the head of a request, with one more header or none.
func frame(spec *Spec, procedure, header string, length int) ([]byte, error) {
	to, err := url.Parse(spec.URL)
	if err != nil {
		return nil, err
	}
	if spec.APIKey != "" {
		header = "Authorization: Bearer " + spec.APIKey + "\r\n" + header
	}
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/proto\r\n"+
		"Connect-Protocol-Version: 1\r\nContent-Length: %d\r\n%s\r\n", procedure, to.Host, length, header), nil
}

// find panics if the mark is missing: the request was built with it.
func find(b []byte, from int, mark string) int {
	at := bytes.Index(b[from:], []byte(mark))
	if at < 0 {
		panic("the request lacks " + mark)
	}
	return from + at
}

// fill writes the next transfers into the request.
func (r *request) fill(m *maker) {
	for n, i := range r.items {
		t := m.make()
		copy(r.bytes[i.bizNo:], t.bizNo[:])
		copy(r.bytes[i.from:], t.from[:])
		copy(r.bytes[i.to:], t.to[:])
		copy(r.bytes[i.amount:], t.amount[:])
		if n == 0 && r.key > 0 {
			copy(r.bytes[r.key+len("key-"):], t.bizNo[:])
		}
	}
}

// connectCaller calls over Connect's unary protocol.
type connectCaller struct {
	conn    httpConn
	request *request
	maker   *maker
	obey    bool
}

func newConnectCaller(spec *Spec, n int) (*connectCaller, error) {
	r, err := newRequest(spec)
	if err != nil {
		return nil, err
	}
	c := &connectCaller{request: r, maker: newMaker(spec, n), obey: spec.Obey}
	return c, c.conn.open(spec)
}

func (c *connectCaller) close() { c.conn.close() }

func (c *connectCaller) call() Outcome {
	o := c.send()
	if !c.obey {
		o.retry = 0
	}
	return o
}

func (c *connectCaller) send() Outcome {
	c.request.fill(c.maker)
	sent := int64(len(c.request.items))
	status, body, err := c.conn.roundTrip(c.request.bytes)
	switch {
	case err != nil:
		return Outcome{Unknown: sent, Err: err}
	case status == 200 && sent == 1:
		return Outcome{Succeeded: 1}
	case status == 200:
		return batchOutcome(body, sent)
	}
	err = fmt.Errorf("HTTP %d: %s", status, body)
	if status >= 500 || status == 408 || status == 499 { // the call may still have succeeded
		return Outcome{Unknown: sent, Err: err}
	}
	return Outcome{Refused: sent, Err: err, retry: retryOf(body)}
}

// retryOf reads the RetryInfo of a Connect error.
func retryOf(body []byte) time.Duration {
	var e struct {
		Details []struct{ Type, Value string }
	}
	_ = json.Unmarshal(body, &e) // errors of intermediaries have none
	for _, d := range e.Details {
		if d.Type == "google.rpc.RetryInfo" {
			info := &errdetails.RetryInfo{}
			if value, err := base64.RawStdEncoding.DecodeString(d.Value); err == nil &&
				proto.Unmarshal(value, info) == nil {
				return info.GetRetryDelay().AsDuration()
			}
		}
	}
	return 0
}

// batchOutcome only checks whether each result is a transfer or an error. Decoding a thousand transfers would
// make the client as busy as the server.
func batchOutcome(body []byte, sent int64) (o Outcome) {
	for len(body) > 0 {
		number, result, rest, err := nextField(body)
		if err != nil {
			return Outcome{Unknown: sent, Err: err}
		}
		body = rest
		if number != 1 {
			continue
		}
		made := false
		for whole := result; len(result) > 0 && err == nil; {
			var value []byte
			number, value, result, err = nextField(result)
			switch number {
			case 1:
				made = true
			case 2:
				e := &ledgerv1.ItemError{}
				_ = proto.Unmarshal(value, e) // for the error text
				o.retry = e.GetRetryDelay().AsDuration()
				o.Err = fmt.Errorf("item: %s: %s (%d bytes)", e.GetReason(), e.GetMessage(), len(whole))
			}
		}
		if made {
			o.Succeeded++
		} else {
			o.Refused++
		}
	}
	if o.Unknown = sent - o.Succeeded - o.Refused; o.Unknown != 0 {
		o.Err = errors.New("wrong number of results in a batch")
	}
	return o
}

func nextField(b []byte) (number protowire.Number, value, rest []byte, err error) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return 0, nil, nil, protowire.ParseError(n)
	}
	b = b[n:]
	if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
		return 0, nil, nil, protowire.ParseError(n)
	}
	if value = b[:n]; kind == protowire.BytesType {
		value, _ = protowire.ConsumeBytes(value)
	}
	return number, value, b[n:], nil
}
