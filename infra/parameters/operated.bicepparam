// A deployment in operation: azd has deployed the images, alerts have a receiver, and operators have their rights. Events are deleted once
// they are sent, a worker that catches up is limited for the sake of consumers and commits, another service also reads the topic, and
// names and tags are those of a company.
using '../main.bicep'

param environmentName = 'operated'
param location = 'westeurope'
param tags = {
  'cost-center': '4711'
}
param names = {
  resourceGroup: 'rg-house'
  worker: 'ca-house-relay'
  consumer: 'ca-house-directory'
}
param furtherReaders = [
  {
    name: 'billing'
    principalId: 'cccccccc-0000-0000-0000-000000000000'
  }
]
param hotPartitionLogs = true
param apiExists = true
param workerExists = true
param consumerExists = true
param workerMaxReplicas = 5
param consumerMaxReplicas = 4
param deleteAfterPublish = '*'
param sendRate = '200'
param readPriority = 'low'
param throughputBucket = 2
param alertEmail = 'operators@example.com'
param operatorPrincipalIds = [
  'aaaaaaaa-0000-0000-0000-000000000000'
]
param leaseOperatorPrincipalIds = [
  'bbbbbbbb-0000-0000-0000-000000000000'
]
