package provider

import (
	"github.com/ledgerd/ledgerd/internal/notify/filelog"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/settings"
)

// kind describes a kind of provider.
type kind struct {
	channels []send.Channel
	// check validates options without opening anything. Nil: the kind needs a server.
	check func(s *Settings, options map[string]any) error
	// build builds a sender. others are the options of tenants that override only the fields of identity.
	build    func(e *Env, s *Settings, options map[string]any, others map[int32]map[string]any) (send.Sender, error)
	identity []string
	// perRecipient means that each recipient is a server of its own: the failure of one says nothing about others.
	perRecipient bool
	concurrency  int // default; 0: DefaultConcurrency
}

var kinds = map[string]kind{
	"smtp": {channels: []send.Channel{send.Email}, check: checkSMTP, build: buildSMTP,
		identity: []string{"from", "reply_to", "envelope"}},
	"twilio":  {channels: []send.Channel{send.SMS}, check: checkOf(newTwilio), build: buildOf(newTwilio)},
	"aliyun":  {channels: []send.Channel{send.SMS}, check: checkOf(newAliyun), build: buildOf(newAliyun)},
	"tencent": {channels: []send.Channel{send.SMS}, check: checkOf(newTencent), build: buildOf(newTencent)},
	"http":    {channels: []send.Channel{send.SMS}, check: checkOf(newHTTP), build: buildOf(newHTTP)},
	"fcm":     {channels: []send.Channel{send.Push}, check: checkOf(newFCM), build: buildOf(newFCM)},
	"apns":    {channels: []send.Channel{send.Push}, check: checkOf(newAPNs), build: buildOf(newAPNs)},
	"webhook": {channels: []send.Channel{send.Webhook}, check: checkWebhook, build: buildWebhook, perRecipient: true,
		concurrency: 256},
	"file": {channels: channels, check: checkFile, build: buildFile},
}

// fileSettings are the settings of kind file, which writes messages to a file for development.
type fileSettings struct {
	Path string `json:"path"` // empty: standard error
}

func checkFile(_ *Settings, options map[string]any) error {
	return settings.Decode(options, &fileSettings{})
}

func buildFile(_ *Env, _ *Settings, options map[string]any, _ map[int32]map[string]any) (send.Sender, error) {
	var f fileSettings
	if err := settings.Decode(options, &f); err != nil {
		return nil, err
	}
	return filelog.New(f.Path)
}
