package provider

import (
	"reflect"
	"strings"

	"github.com/ledgerd/ledgerd/internal/notify/push"
	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/sms"
)

// Fields returns the names of all settings, by kind.
func Fields() map[string][]string {
	all := map[string][]string{}
	for kind, settings := range map[string]any{"": Settings{}, "smtp": smtpSettings{}, "dkim": dkimSettings{},
		"file": fileSettings{}, "webhook": webhookSettings{},
		"timeouts": smtpSettings{}.Timeouts, "twilio": sms.TwilioSettings{}, "aliyun": sms.AliyunSettings{},
		"tencent": sms.TencentSettings{}, "http": sms.HTTPSettings{}, "reports": report.JSON{},
		"fcm": push.FCMSettings{}, "apns": push.APNsSettings{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(settings)) {
			tag := f.Tag.Get("json") + f.Tag.Get("yaml")
			if name, _, _ := strings.Cut(tag, ","); name != "" && name != "-" {
				all[kind] = append(all[kind], name)
			}
		}
	}
	return all
}
