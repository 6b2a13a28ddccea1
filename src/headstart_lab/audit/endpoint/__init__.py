"""The audit of a server from outside: any that speaks the OpenAI API, alone or beside another one."""
