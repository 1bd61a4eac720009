package importertest

import "time"

// PayExamples makes the payments that the files of examples/reconcile list.
func (s *Shop) PayExamples() {
	s.Helper()
	china := time.FixedZone("", 8*60*60)
	at := func(zone *time.Location, h, m, sec int) time.Time { return time.Date(2026, 11, 3, h, m, sec, 0, zone) }
	for _, x := range []Said{
		{Gateway: "stripe", Number: "shop-1001", ID: "pi_1001", Amount: "20.00", Currency: "USD",
			At: at(time.UTC, 9, 12, 44)},
		{Gateway: "stripe", Number: "shop-1002", ID: "pi_1002", Amount: "35.50", Currency: "USD",
			At: at(time.UTC, 11, 40, 2)},
		{Gateway: "alipay", Number: "shop-2001", ID: "2026110322001400000000002001", Amount: "88.00", Currency: "CNY",
			At: at(china, 10, 0, 21)},
		{Gateway: "alipay", Number: "shop-2002", ID: "2026110322001400000000002002", Amount: "199.90", Currency: "CNY",
			At: at(china, 12, 31, 5)},
		{Gateway: "wechat", Number: "shop-3001", ID: "4200000000202611030000003001", Amount: "66.00", Currency: "CNY",
			At: at(china, 9, 30, 12)},
		{Gateway: "wechat", Number: "shop-3002", ID: "4200000000202611030000003002", Amount: "128.00", Currency: "CNY",
			At: at(china, 14, 5, 40)},
	} {
		s.Pay(x)
	}
	for _, x := range []Said{
		{Gateway: "stripe", Number: "shop-1002", Refund: "refund-1002", ID: "re_1002", Amount: "5.00", Currency: "USD"},
		{Gateway: "alipay", Number: "shop-2001", Refund: "refund-2001", Amount: "38.00", Currency: "CNY"},
		{Gateway: "wechat", Number: "shop-3002", Refund: "refund-3002", ID: "50300000002026110300000003002",
			Amount: "28.00", Currency: "CNY"},
	} {
		s.Refund(x)
	}
}
