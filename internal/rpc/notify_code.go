package rpc

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// SendCode sends a verification code.
func (s *Notify) SendCode(ctx context.Context, r *notifyv1.SendCodeRequest) (*notifyv1.SendCodeResponse, error) {
	return run(ctx, s.Mutations, sendCodeCall, r)
}

var sendCodeCall = register("notify.send_code",
	func(c *call, _ *decoder, r *notifyv1.SendCodeRequest) mutation[*notifyv1.SendCodeResponse] {
		or := func(d *durationpb.Duration, otherwise time.Duration) time.Duration {
			return cmp.Or(d.AsDuration().Truncate(time.Millisecond), otherwise)
		}
		use := r.GetTemplate()
		cmd := &flow.SendCode{
			Issue: code.Issue{Caller: c.notifyCaller(), Type: r.GetType(), Channel: channels[r.GetChannel()],
				Recipient: r.GetRecipient(),
				Code:      code.New(int(cmp.Or(r.GetDigits(), code.DefaultDigits))), Nonce: code.NewNonce(),
				Life:     or(r.GetLife(), code.DefaultLife),
				Interval: or(r.GetInterval(), code.DefaultInterval),
				Daily:    int(cmp.Or(r.GetDailyLimit(), code.DefaultDaily)), Suppress: r.GetSuppress()},
			Template: template.Name{Tenant: c.identity.Tenant, Channel: channels[r.GetChannel()], Name: use.GetName(),
				Locale: use.GetLocale(), Version: use.GetVersion()},
			Variables: use.GetVariables().AsMap(), ClientIP: r.GetClientIp()}
		return mutation[*notifyv1.SendCodeResponse]{command: cmd, rows: sendRows + 1,
			render: func(answer any, _ bool) (*notifyv1.SendCodeResponse, error) {
				a := answer.(code.Issued)
				return &notifyv1.SendCodeResponse{ExpireTime: timestamppb.New(a.ExpiresAt),
					NextTime: timestamppb.New(a.NextAt)}, nil
			}}
	})

// VerifyCode tries a verification code.
func (s *Notify) VerifyCode(ctx context.Context, r *notifyv1.VerifyCodeRequest) (*notifyv1.VerifyCodeResponse, error) {
	return run(ctx, s.Mutations, verifyCodeCall, r)
}

var verifyCodeCall = register("notify.verify_code",
	func(c *call, _ *decoder, r *notifyv1.VerifyCodeRequest) mutation[*notifyv1.VerifyCodeResponse] {
		cmd := &code.VerifyCommand{Caller: c.notifyCaller(), Type: r.GetType(), Channel: channels[r.GetChannel()],
			Recipient: r.GetRecipient(),
			Code:      r.GetCode(), Required: r.GetRequired(), Ghost: code.NewNonce()}
		return mutation[*notifyv1.VerifyCodeResponse]{command: flow.Code(cmd), earnest: true,
			render: func(answer any, _ bool) (*notifyv1.VerifyCodeResponse, error) {
				a := answer.(code.Verified)
				return &notifyv1.VerifyCodeResponse{Valid: a.Valid, TriesLeft: a.TriesLeft}, nil
			}}
	})
