package main

import (
	"go.yaml.in/yaml/v3"

	"github.com/ledgerd/ledgerd/examples/gateway/wechat"
)

// settings returns the settings file for ledgerd serve --pay.
func (k *keys) settings(o *options, url string, w *wechat.Keys) ([]byte, error) {
	type entry map[string]any
	file := func(name string) string { return "file:" + k.path(name) }
	platform := []entry{{"key": file("wechat_platform_cert.pem")}}
	publicKey := entry{"id": w.PublicKeyID, "key": file("wechat_public.pem")}
	if !o.certificates { // requests ask for answers signed with the first one
		platform = append([]entry{publicKey}, platform...)
	}
	gateways := []entry{
		{"kind": "stripe", "url": url, "api_keys": []string{k.Stripe.Secret}, "webhook_secrets": k.Stripe.Signing},
		{"kind": "alipay", "url": url + "/gateway.do", "app_id": k.Alipay.AppID, "seller_id": k.Alipay.SellerID,
			"private_key": file("alipay_app_private.pem"),
			"public_keys": []string{file("alipay_public.pem")}},
		{"kind": "wechat", "url": url, "mchid": w.MchID, "appid": w.AppID, "serial_no": w.MerchantSerial,
			"private_key": file("wechat_merchant_private.pem"), "api_v3_keys": []string{w.APIv3},
			"public_keys": platform},
		{"kind": "standard", "url": url + "/standard", "merchant": k.Standard.Merchant, "secrets": k.Standard.Secrets},
	}
	for _, g := range gateways {
		g["name"], g["tenant"], g["notify_url"] = g["kind"], o.tenant, o.notify
	}
	return yaml.Marshal(map[string]any{"gateways": gateways})
}
