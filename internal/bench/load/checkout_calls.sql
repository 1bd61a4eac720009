select bench.create_order($1, $2, $3, $4);
select bench.create_payment($1, $2);
select bench.submitted($1, $2, $3);
select bench.paid($1, $2, $3, $4, $5)
