package rpc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	auditv1 "github.com/ledgerd/ledgerd/gen/ledgerd/audit/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

func init() {
	goWell = append(goWell, "Audit.ListEvents")
	examples["Audit.ListEvents"] = func(resources) []proto.Message {
		return all(&auditv1.ListEventsRequest{}, &auditv1.ListEventsRequest{Kind: accountSetting, Name: "x Y"})
	}
}

const accountSetting = auditv1.SettingKind_SETTING_KIND_ACCOUNT

// events lists the tenant's events, the oldest first, as "kind name before > after".
func (c *caller) events(r *auditv1.ListEventsRequest) (list []string) {
	c.T.Helper()
	for {
		res := ok(c, "Audit.ListEvents", r, new(auditv1.ListEventsResponse))
		for _, e := range res.GetEvents() {
			kind := strings.ToLower(strings.TrimPrefix(e.GetKind().String(), "SETTING_KIND_"))
			list = append(list, fmt.Sprintf("%s %s %s > %s", kind, e.GetName(),
				object(e.GetBefore().AsMap(), e.Before == nil),
				object(e.GetAfter().AsMap(), e.After == nil)))
			if e.GetKeyName() == "" || !strings.Contains(c.apiKey, e.GetKeyName()) || e.GetPrincipal() == "" ||
				e.GetRequestId() == "" || e.GetRecordTime() == nil || e.GetDatabaseRole() == "" {
				c.T.Errorf("the event does not say who made it: %v", e)
			}
		}
		if res.GetNextPageToken() == "" {
			slices.Reverse(list)
			return list
		}
		r.PageToken = res.GetNextPageToken()
	}
}

func object(m map[string]any, missing bool) string {
	if missing {
		return "-"
	}
	return fmt.Sprint(m)
}

func TestChangesOfSettingsAreInTheAuditLog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("demo", "ada", access.Admin)}
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "EUR", Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: "plain", Asset: "EUR"}, {Code: "loan", Asset: "EUR", MinBalance: proto.String("-100")}}},
		new(ledgerv1.CreateAccountsResponse))
	update := &ledgerv1.UpdateAccountRequest{Account: ref("plain", "EUR"), MinBalance: proto.String("-5.5")}
	frozen := &ledgerv1.FreezeAccountRequest{Account: ref("plain", "EUR")}
	ok(c, "UpdateAccount", update, new(ledgerv1.UpdateAccountResponse))
	ok(c, "UpdateAccount", update, new(ledgerv1.UpdateAccountResponse)) // changes nothing
	dry := execute(operation("", frozen))
	dry.DryRun = true
	c.executed(dry)
	c.call(connectProto, "Batch.Execute", execute(operation("", frozen),
		operation("", &ledgerv1.FreezeAccountRequest{Account: ref("none", "EUR")}))).wants(t, "an account is missing",
		"ACCOUNT_NOT_FOUND")
	c.executed(execute(operation("", frozen)))
	define := ticket("ticket", "")
	ok(c, "Machine.DefineMachine", define, new(machinev1.DefineMachineResponse))
	ok(c, "Machine.DefineMachine", define, new(machinev1.DefineMachineResponse))
	gateway := &paymentv1.PutGatewayRequest{Gateway: &paymentv1.Gateway{Gateway: "g", Clearing: "plain"}}
	ok(c, "Payment.PutGateway", gateway, new(paymentv1.PutGatewayResponse))
	gateway.Gateway.Suspense = "loan"
	ok(c, "Payment.PutGateway", gateway, new(paymentv1.PutGatewayResponse))
	ok(c, "Webhook.CreateEndpoint", &notifyv1.CreateEndpointRequest{Name: "e", Url: "https://example.com/x"},
		new(notifyv1.CreateEndpointResponse))
	ok(c, "Webhook.DeleteEndpoint", &notifyv1.DeleteEndpointRequest{Name: "e"}, new(notifyv1.DeleteEndpointResponse))

	const opened = "map[max_balance:<nil> min_balance:-5.50 state:open]"
	want := []string{
		"account loan EUR - > map[max_balance:<nil> min_balance:-100.00 state:open]",
		"account plain EUR map[max_balance:<nil> min_balance:0.00 state:open] > " + opened,
		"account plain EUR " + opened + " > map[max_balance:<nil> min_balance:-5.50 state:frozen]",
		"machine ticket - > map[version:1]",
		"gateway g - > map[clearing:plain]",
		"gateway g map[clearing:plain] > map[clearing:plain suspense:loan]",
		"endpoint e - > map[secret_version:1 url:https://example.com/x]",
		"endpoint e map[secret_version:1 url:https://example.com/x] > -",
	}
	if got := c.events(&auditv1.ListEventsRequest{PageSize: 3, Principal: "ada"}); !slices.Equal(got, want) {
		t.Errorf("the log has\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := c.events(&auditv1.ListEventsRequest{Kind: accountSetting, Name: "plain EUR"}); !slices.Equal(got,
		want[1:3]) {
		t.Errorf("of one account it has %q", got)
	}
	if got := c.events(&auditv1.ListEventsRequest{Kind: accountSetting, Principal: "ada"}); !slices.Equal(got,
		want[:3]) {
		t.Errorf("of accounts and ada it has %q", got)
	}
	other := &caller{s, s.Key("other", "ada", access.Admin)}
	if got := other.events(&auditv1.ListEventsRequest{Principal: "ada"}); len(got) != 0 {
		t.Errorf("another tenant reads %q", got)
	}
	writer := &caller{s, s.Key("demo", "bob", access.Write)}
	writer.call(connectProto, "Audit.ListEvents", &auditv1.ListEventsRequest{}).wants(t, "a writer reads",
		"PERMISSION_DENIED")
	c.call(connectProto, "Audit.ListEvents", &auditv1.ListEventsRequest{Name: "x"}).wants(t, "a name has no kind",
		"FIELD_INVALID")
}
