package provider

import (
	"github.com/ledgerd/ledgerd/internal/notify/push"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/sms"
	"github.com/ledgerd/ledgerd/internal/settings"
)

// checkOf and buildOf return the functions check and build of a kind whose options are decoded into S unchanged. The
// parameter build also gets the provider's name, by which messages refer to its templates.
func checkOf[S any](build func(s S, name string) (send.Sender, error)) func(*Settings, map[string]any) error {
	return func(s *Settings, options map[string]any) error {
		_, err := buildOf(build)(nil, s, options, nil)
		return err
	}
}

func buildOf[S any](build func(s S, name string) (send.Sender, error)) func(*Env, *Settings, map[string]any,
	map[int32]map[string]any) (send.Sender, error) {
	return func(_ *Env, s *Settings, options map[string]any, _ map[int32]map[string]any) (send.Sender, error) {
		var own S
		if err := settings.Decode(options, &own); err != nil {
			return nil, err
		}
		return build(own, s.Name)
	}
}

func newTwilio(s sms.TwilioSettings, _ string) (send.Sender, error) {
	return asSender(sms.NewTwilio(s))
}

func newAliyun(s sms.AliyunSettings, name string) (send.Sender, error) {
	s.Name = name
	return asSender(sms.NewAliyun(s))
}

func newTencent(s sms.TencentSettings, name string) (send.Sender, error) {
	s.Name = name
	return asSender(sms.NewTencent(s))
}

func newHTTP(s sms.HTTPSettings, name string) (send.Sender, error) {
	s.Name = name
	return asSender(sms.NewHTTP(s))
}

func newFCM(s push.FCMSettings, _ string) (send.Sender, error) { return asSender(push.NewFCM(s)) }

func newAPNs(s push.APNsSettings, _ string) (send.Sender, error) { return asSender(push.NewAPNs(s)) }

// asSender avoids a nil pointer in a non-nil interface.
func asSender[S send.Sender](s S, err error) (send.Sender, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
