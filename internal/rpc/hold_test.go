package rpc_test

import (
	"testing"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

func TestReleaseReportsWhetherTheHoldHadEnded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	release := func(bizNo string) *ledgerv1.ReleaseRequest {
		return &ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: bizNo}}
	}
	capture := func(bizNo string) *ledgerv1.CaptureRequest {
		return &ledgerv1.CaptureRequest{Hold: &ledgerv1.CaptureRequest_HoldBizNo{HoldBizNo: bizNo}, BizNo: bizNo +
			"-paid", To: "spent:a",
			Amount: "1", ReleaseRest: true}
	}
	late := func(name string, a answer, state string) {
		t.Helper()
		if a.Reason(t) != "HOLD_NOT_HELD" || a.State("state") != state {
			t.Errorf("%s: %s", name, a.Raw)
		}
	}
	for _, bizNo := range []string{"captured", "released"} {
		ok(c, "Hold", keep(bizNo, "u:a", "", "5"), new(ledgerv1.HoldResponse))
	}

	paid := ok(c, "Capture", capture("captured"), new(ledgerv1.CaptureResponse))
	if h := paid.GetHold(); h.GetState() != ledgerv1.HoldState_HOLD_STATE_CAPTURED || h.GetCaptured() != "1.00" ||
		h.GetRemaining() != "0.00" {
		t.Errorf("captured with release of the rest: %v", h)
	}
	late("a release after a capture", c.call(connectJSON, "Release", release("captured")), "captured")

	for i := range 2 {
		res := ok(c, "Release", release("released"), new(ledgerv1.ReleaseResponse))
		if res.GetHold().GetState() != ledgerv1.HoldState_HOLD_STATE_RELEASED || res.GetExisted() != (i > 0) {
			t.Errorf("release %d: %v", i, res)
		}
	}
	late("a capture after a release", c.call(connectJSON, "Capture", capture("released")), "released")
}
