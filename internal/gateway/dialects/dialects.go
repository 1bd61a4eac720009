// Package dialects lists the dialects of payment gateways.
package dialects

import (
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/alipay"
	"github.com/ledgerd/ledgerd/internal/gateway/standard"
	"github.com/ledgerd/ledgerd/internal/gateway/stripe"
	"github.com/ledgerd/ledgerd/internal/gateway/wechat"
)

// All are the dialects by kind, as settings name it.
var All = gateway.Dialects{"stripe": stripe.Dialect, "alipay": alipay.Dialect, "wechat": wechat.Dialect,
	"standard": standard.Dialect}
