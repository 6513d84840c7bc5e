"""The manager: uploads, jobs and reads over HTTP; jobs run in processes of their own, off the serving path."""
