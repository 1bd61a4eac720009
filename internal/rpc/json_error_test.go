package rpc

import (
	"strings"
	"testing"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"google.golang.org/protobuf/proto"
)

func TestJSONErrorsNameTheFieldAndItsForm(t *testing.T) {
	t.Parallel()
	transfer, hold := &ledgerv1.TransferRequest{}, &ledgerv1.HoldRequest{}
	for _, c := range []struct {
		into             proto.Message
		body, path, want string
	}{
		{transfer, `{"postings":[{"from":"a"},{"from":"b","amount":12.3}]}`, "postings[1].amount", `such as "12.30"`},
		{transfer, "{\"postings\":[\n {\"from\":\"ü\", \"to\": true}]}", "postings[0].to", "a string in double quotes"},
		{transfer, `{"postings":[{"form":"EXACT"}]}`, "postings[0].form", "AMOUNT_FORM_UP_TO"},
		{transfer, `{"postings":{}}`, "postings", "an array"},
		{transfer, `{"bizNo":"a","postings":[7]}`, "postings[0]", "an object"},
		{transfer, `{"dryRun":"yes"}`, "dryRun", "true or false"},
		{transfer, `{"metadata":{"a":1}}`, "metadata.a", "a string"},
		{transfer, `{"effectiveTime":"yesterday"}`, "effectiveTime", "RFC 3339"},
		{transfer, `{"conditions":[{"account":{"code":"a"},"version":"x"}]}`, "conditions[0].version", "an integer"},
		{transfer, `{"conditions":[{"version":10000000000000000000}]}`, "conditions[0].version", "at most 64 bits"},
		{&ledgerv1.ListHoldsRequest{}, `{"pageSize":3000000000}`, "pageSize", "at most 32 bits"},
		{hold, `{"life":"315576000001s"}`, "life", "below 10,000 years"},
		{hold, `{"life":"1.0000000001s"}`, "life", "at most 9 decimals"},
		{transfer, "{\"bizNo\":\"a\xff\"}", "bizNo", "valid UTF-8"},
		{transfer, `{"bizNo":"\ud800"}`, "", "half of a surrogate pair"},
		{hold, `{"life":"1h"}`, "life", `"3600s"`},
		{hold, `{"metadata":{"a":"}"},"life":5}`, "life", `"3600s"`},
		{transfer, `{"postings":[{"sum":"1"}]}`, "postings[0].sum", "unknown field"},
		{transfer, `{"color":"red"}`, "color", "unknown field"},
		{transfer, `{"bizNo":"a","bizNo":"b"}`, "bizNo", "duplicate field"},
		{transfer, `{"bizNo":"a","biz_no":"b"}`, "biz_no", "duplicate field"},
		{transfer, `{"metadata":{"a":"1","a":"2"}}`, "metadata", "duplicate map key"},
		{transfer, `{"":1}`, "", "unknown field"},
		{transfer, `{"a\"b":1}`, `a"b`, "unknown field"},
		{transfer, `{"` + strings.Repeat("x", 1000) + `":1}`, "", "unknown field"},
		{&ledgerv1.GetTransferRequest{}, `{"transferBizNo":"z1","transferId":"7"}`, "transferId",
			"send only one of transferId, transferBizNo"},
		{&batchv1.ExecuteRequest{}, `{"operations":[{"request":{"bizNo":"a"}}]}`, "operations[0].request",
			`"@type" is missing`},
		{&batchv1.ExecuteRequest{},
			`{"operations":[{"request":{"@type":"type.googleapis.com/ledgerd.ledger.v1.TransferRequest",` +
				`"postings":[{"amount":1}]}}]}`,
			"operations[0].request.postings[0].amount", `such as "12.30"`},
		{&batchv1.ExecuteRequest{},
			`{"operations":[{"request":{"@type":"type.googleapis.com/ledgerd.ledger.v1.Nope"}}]}`,
			"operations[0].request.@type", "not a type of the API"},
		{transfer, `[]`, "", "must be a JSON object"},
		{transfer, `null`, "", "must be a JSON object"},
		{transfer, `{"bizNo":"a"`, "", "the body ends before its JSON does"},
		{transfer, `{"bizNo":}`, "", "unexpected token"},
		{transfer, ``, "", ""},
	} {
		err := readJSON.Unmarshal([]byte(c.body), c.into)
		p, ok := explainJSON([]byte(c.body), c.into, err).(jsonProblem)
		if !ok || p.path != c.path || !strings.Contains(p.problem, c.want) || len(p.problem) > 300 ||
			strings.Contains(p.problem, "UNSPECIFIED") || strings.Contains(p.problem, "ledgerd.ledger.v1.GetT") {
			t.Errorf("%s: %q: %q, want %q: %q", c.body, p.path, p.problem, c.path, c.want)
		}
	}
}

// explainJSON must not panic on any invalid request.
func FuzzExplainJSON(f *testing.F) {
	for _, s := range []string{`{"postings":[{"amount":1}]}`, `[]`, `7`, `{"a":{"b":[[1],{}]}}`, "{\"a\"\n:\"\xff\"}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		m := &ledgerv1.TransferRequest{}
		if err := readJSON.Unmarshal([]byte(body), m); err != nil {
			_ = explainJSON([]byte(body), m, err).Error()
		}
	})
}
