package sms

import (
	"net/url"
	"testing"
	"time"
)

// The example in https://help.aliyun.com/zh/sdk/product-overview/v3-request-structure-and-signature.
func TestACS3(t *testing.T) {
	r := acs3(&url.URL{Scheme: "https", Host: "ecs.cn-shanghai.aliyuncs.com", Path: "/"}, "RunInstances", "2014-05-26",
		map[string]string{"RegionId": "cn-shanghai", "ImageId": "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd"},
		"YourAccessKeyId", "YourAccessKeySecret", time.Date(2023, 10, 26, 10, 22, 32, 0, time.UTC),
		"3156853299f313e23d1673dc12e1703d")
	want := "ACS3-HMAC-SHA256 Credential=YourAccessKeyId," +
		"SignedHeaders=host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce;x-acs-version," +
		"Signature=06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"
	if got := r.Header.Get("Authorization"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := percent("a b*c~d/e+中"); got != "a%20b%2Ac~d%2Fe%2B%E4%B8%AD" {
		t.Error(got)
	}
}

// The example in https://cloud.tencent.com/document/api/213/30654, whose key is 32 asterisks.
func TestTC3(t *testing.T) {
	body := `{"Limit": 1, "Filters": [{"Values": ["\u672a\u547d\u540d"], "Name": "instance-name"}]}`
	r := tc3(&url.URL{Scheme: "https", Host: "cvm.tencentcloudapi.com", Path: "/"}, "cvm", "DescribeInstances",
		"2017-03-12", "ap-guangzhou",
		[]byte(body), "AKID********************************", "********************************",
		time.Unix(1551113065, 0))
	want := "TC3-HMAC-SHA256 Credential=AKID********************************/2019-02-25/cvm/tc3_request, " +
		"SignedHeaders=content-type;host;x-tc-action, " +
		"Signature=10b1a37a7301a02ca19a647ad722d5e43b4b3cff309d421d85b46093f6ab6c4f"
	if got := r.Header.Get("Authorization"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
