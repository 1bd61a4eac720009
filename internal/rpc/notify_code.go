package rpc

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

func (s *Notify) SendCode(ctx context.Context, r *pb.SendCodeRequest) (*pb.SendCodeResponse, error) {
	return run(ctx, s.Mutations, sendCodeOperation, r)
}

var sendCodeOperation = register("notify.send_code",
	func(c *call, _ *decoder, r *pb.SendCodeRequest) mutation[*pb.SendCodeResponse] {
		or := func(d *durationpb.Duration, otherwise time.Duration) time.Duration {
			return cmp.Or(d.AsDuration().Truncate(time.Millisecond), otherwise)
		}
		use := r.GetTemplate()
		cmd := &flow.SendCode{
			Issue: code.Issue{Caller: c.caller(), Type: r.GetType(), Channel: channels[r.GetChannel()],
				Recipient: r.GetRecipient(), Code: code.New(int(cmp.Or(r.GetDigits(), code.DefaultDigits))),
				Nonce: code.NewNonce(), Life: or(r.GetLife(), code.DefaultLife),
				Interval: or(r.GetInterval(), code.DefaultInterval),
				Daily:    int(cmp.Or(r.GetDailyLimit(), code.DefaultDaily)), Suppress: r.GetSuppress()},
			Template: template.Name{Tenant: c.identity.Tenant, Channel: channels[r.GetChannel()], Name: use.GetName(),
				Locale: use.GetLocale(), Version: use.GetVersion()}, Variables: use.GetVariables().AsMap(),
			ClientIP: r.GetClientIp()}
		return newMutation(cmd, sendRows+1, func(a code.Issued, _ bool) *pb.SendCodeResponse {
			return &pb.SendCodeResponse{ExpireTime: timestamppb.New(a.ExpiresAt), RetryTime: timestamppb.New(a.NextAt)}
		})
	})

func (s *Notify) VerifyCode(ctx context.Context, r *pb.VerifyCodeRequest) (*pb.VerifyCodeResponse, error) {
	return run(ctx, s.Mutations, verifyCodeOperation, r)
}

var verifyCodeOperation = register("notify.verify_code",
	func(c *call, _ *decoder, r *pb.VerifyCodeRequest) mutation[*pb.VerifyCodeResponse] {
		cmd := &code.VerifyCommand{Caller: c.caller(), Type: r.GetType(), Channel: channels[r.GetChannel()],
			Recipient: r.GetRecipient(), Code: r.GetCode(), Required: r.GetRequired(), MissNonce: code.NewNonce()}
		m := newMutation(flow.Code(cmd), 1, func(a code.Verified, _ bool) *pb.VerifyCodeResponse {
			return &pb.VerifyCodeResponse{Valid: a.Valid, TriesLeft: a.TriesLeft}
		})
		m.noDryRun = true
		return m
	})
